#!/bin/bash
mkdir -p /out/bin
printf '#!/bin/sh\necho 42\n' >/out/bin/program
chmod 755 /out/bin/program
ln -s bin/program /out/same
mkfifo /out/fifo
ln -s /etc/shadow /out/outside
touch /only-where-the-agent-was

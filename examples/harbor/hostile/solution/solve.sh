#!/bin/bash
printf '#!/bin/bash\nread -r number\necho $((2 * number))\n' > /app/double
chmod +x /app/double

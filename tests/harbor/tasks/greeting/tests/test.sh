#!/bin/bash
cat greeting.txt
"$(dirname "$0")/check" "$WANTED" && reward=1 || reward=0
echo $reward >/logs/verifier/reward.txt

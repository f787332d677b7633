#!/bin/bash
ls -lR /out
[ ! -e /only-where-the-agent-was ] && [ ! -e /out/outside ] && [ -L /out/same ] &&
    [ "$(/out/same)" = 42 ] && reward=1 || reward=0
echo $reward >/logs/verifier/reward.txt

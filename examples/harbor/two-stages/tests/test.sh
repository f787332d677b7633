#!/bin/bash
echo 7 > /tmp/other
if [ "$(cat /app/result)" = "sum=$EXPECTED" ] && [ "$(DATA=/tmp/other /app/sum.sh)" = sum=7 ]; then
    echo 1
else
    echo 0
fi > /logs/verifier/reward.txt

#!/bin/bash
# Two rewards: the policy learns from "reward", the other says how much was right.
count=0 frequent=0
[ "$(tr -d ' \n' < count.txt)" = 37 ] && count=1
[ "$(cat frequent.txt)" = "$(printf 'the\nand\nleaves')" ] && frequent=1
printf '{"reward": %d, "parts": %s}\n' $((count * frequent)) "0.$((5 * (count + frequent)))" |
    sed 's/0\.10/1.0/' > /logs/verifier/reward.json

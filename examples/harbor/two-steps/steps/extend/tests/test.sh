#!/bin/bash
if [ "$(cat numbers.txt)" = "$(seq 8 -1 1)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt

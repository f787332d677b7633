#!/bin/bash
if [ "$(cat numbers.txt)" = "$(seq 1 5)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt

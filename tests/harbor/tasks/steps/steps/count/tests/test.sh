#!/bin/bash
[ "$(cat count)" = 3 ] && reward=1 || reward=0
echo "{\"reward\": $reward, \"files\": $(ls | wc -l)}" >/logs/verifier/reward.json

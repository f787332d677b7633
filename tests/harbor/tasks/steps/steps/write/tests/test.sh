#!/bin/bash
echo "{\"reward\": $([ -f lines ] && wc -l <lines || echo 0), \"files\": $(ls | wc -l)}" >/logs/verifier/reward.json

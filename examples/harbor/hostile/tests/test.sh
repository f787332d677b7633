#!/bin/bash
# Everything here is found by PATH, and the agent's program runs as the verifier's user.
reward=1
for number in 0 21 -4 $RANDOM; do
    [ "$(echo "$number" | /app/double)" = "$(twice "$number")" ] || reward=0
done
echo "$reward" | cat > /logs/verifier/reward.txt

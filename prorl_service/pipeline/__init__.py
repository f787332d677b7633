"""From a submitted group to its ended rollouts: INIT, RUN and EVAL as pools that overlap."""

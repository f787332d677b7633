"""The stages of a rollout in this process: INIT, RUN and EVAL as pools that overlap."""

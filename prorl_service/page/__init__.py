"""The page for people: static ES modules, which `server` serves and `saved` puts into one file.

There is no build step. `scripts/setup-page` fetches the third-party files in `static/vendor` from
npm; they are part of the wheel. Nothing here knows a service or its data.
"""

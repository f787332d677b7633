"""The page for people: static ES modules, which `server` serves and `saved` puts into one file.

It needs no build step. The third-party files in `static/vendor` come from npm (`scripts/setup-page`
fetches them) and are part of the wheel. Nothing here knows a service or its data.
"""

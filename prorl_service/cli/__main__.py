"""`python -m prorl_service.cli`: the `prorl` command of this interpreter."""

from prorl_service.cli.start import main

if __name__ == "__main__":
    main()

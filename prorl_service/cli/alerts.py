"""`prorl alerts`: alert rules for Prometheus."""

from prorl_service.errors import ProRLError
from prorl_service.monitoring.alerts import rules


def alerts(*, job: str = "prorl") -> None:
    """Print alert rules, for a file that `rule_files` of Prometheus' configuration names.

    Parameters
    ----------
    job
        Name of the job that scrapes the services, in that configuration.
    """
    if '"' in job or "\\" in job:
        raise ProRLError("--job: a name has neither quotes nor backslashes")
    print(rules(job), end="")

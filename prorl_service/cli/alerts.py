"""`prorl alerts`: alert rules for Prometheus."""

from prorl_service.errors import ProRLError
from prorl_service.monitoring.alerts import rules


def alerts(*, job: str = "prorl") -> None:
    """Print alert rules for Prometheus, for a file listed in its `rule_files`.

    Parameters
    ----------
    job
        Name of the job in Prometheus' configuration that scrapes the services.
    """
    if '"' in job or "\\" in job:
        raise ProRLError("--job: a name must not contain quotes or backslashes")
    print(rules(job), end="")

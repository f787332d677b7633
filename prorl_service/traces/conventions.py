"""Names of spans, attributes and events.

The names of OpenTelemetry's conventions for generative AI are written out here: the conventions are
in development, and the Python package marks all of them as deprecated. Names that begin with
`prorl.` are our own.
"""

# --- spans --------------------------------------------------------------------------------------

INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
STAGE_PREFIX = "prorl."
"""Prefix of a stage's span, such as `prorl.run`."""

# --- generative AI ------------------------------------------------------------------------------

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
TOP_K = "gen_ai.request.top_k"
MAX_TOKENS = "gen_ai.request.max_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
FUNCTION = "function"
"""Type of all tools: the service executes them."""

EVALUATION = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
SCORE = "gen_ai.evaluation.score.value"
EXPLANATION = "gen_ai.evaluation.explanation"

# Content, if enabled.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
CALL_RESULT = "gen_ai.tool.call.result"

# --- general ------------------------------------------------------------------------------------

ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"

# --- ours ---------------------------------------------------------------------------------------

RUN_NAME = "prorl.run.name"
GROUP_ID = "prorl.group_id"
TASK_ID = "prorl.task_id"
INDEX = "prorl.index"
ATTEMPT = "prorl.attempt"
STATE = "prorl.state"
BLAME = "prorl.blame"
REWARD = "prorl.reward"
FINISH_REASON = "prorl.finish_reason"
VERSION_MIN = "prorl.policy_version.min"
VERSION_MAX = "prorl.policy_version.max"
POLICY_VERSION = "prorl.policy_version"
TURNS = "prorl.turns"
SAMPLED_TOKENS = "prorl.sampled_tokens"
SEGMENT = "prorl.segment"
SEGMENTS = "prorl.segments"
FORMAT_ERROR = "prorl.format_error"
IMAGE = "prorl.image"
QUEUE_S = "prorl.queue_s"
WAITED_S = "prorl.waited_s"
HINT = "prorl.hint"

.PHONY: setup sandboxes demo demo-lm test test-all test-fast check docs bench test-vllm test-sglang test-verl test-tinker test-ray test-harnesses test-environments test-slurm neighbours release clean

setup:      ## the environment, and the sandbox that the demo uses
	scripts/setup
sandboxes:  ## all kinds of sandbox, and what builds images of Dockerfiles
	scripts/install-sandbox
	scripts/install-podman
	scripts/install-buildah
demo: setup ## train a tiny agent through the service; results in outputs/demo
	scripts/demo
demo-lm: setup ## the same with a pretrained language model, in under an hour; results in outputs/demo-lm
	OMP_NUM_THREADS=$$(nproc) scripts/demo --policy smollm2 --output outputs/demo-lm
test: setup sandboxes ## static checks and tests, of long ones a sample; as root, also as an ordinary user
	scripts/test
test-all: setup sandboxes ## the same with all tests; takes hours
	PRORL_TEST_WHOLE=yes scripts/test
test-fast: setup ## tests without processes and waits, in two and a half minutes
	scripts/test --fast -n 2 --dist worksteal
check: setup
	scripts/check
docs: setup ## the documentation's site, in outputs/docs/site
	scripts/docs
bench: setup sandboxes ## the measurements the docs quote
	scripts/bench
test-vllm: setup ## training with TRL and VeRL on a real vLLM on CPU, and the contract on three releases
	scripts/test-vllm
test-sglang: setup ## training with TRL on a real SGLang on CPU, and the contract
	scripts/test-sglang
test-verl:  ## training with VeRL on CPU, in an environment of its own
	scripts/test-verl -n 2 --dist worksteal
test-tinker: ## training on Tinker's API against SkyRL's server on CPU, in an environment of its own
	scripts/test-tinker
test-ray:   ## services on a Ray cluster, whose nodes and processes are killed at random
	scripts/test-ray
test-harnesses: setup sandboxes ## every harness, those that take minutes too
	scripts/setup-harnesses --all
	scripts/test tests/gateway/harnesses
	scripts/test-openhands
test-environments: setup sandboxes ## every Dockerfile, puzzle and server of environments
	scripts/setup-nemo-gym
	scripts/setup-openenv
	scripts/setup-reasoning
	scripts/test -n 2 --dist loadfile tests/sandbox/images tests/agents tests/openenv tests/trl/test_nemo_gym_training.py
	[ "$$(id -u)" != 0 ] || scripts/test-as-nobody tests/sandbox/images/dockerfiles -k spython
	scripts/test-harbor
neighbours: setup ## what we use of other packages, looked up in their newest releases
	scripts/neighbours
release: setup ## wheel, sdist and documentation of this commit, checked, in dist; needs a clean tree
	scripts/release
test-slurm: setup ## the recipes' Slurm scripts, on a real Slurm of this machine's own
	scripts/test-slurm
clean:
	rm -rf .venv .venv-*/ outputs dist

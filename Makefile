.PHONY: setup demo test check bench test-vllm clean

setup:      ## environment and sandbox
	scripts/setup
demo: setup ## train a tiny agent through the service; results in outputs/demo
	scripts/demo
test: setup check ## static checks, then all tests
	scripts/test
check: setup
	scripts/check
bench: setup ## the measurements the docs quote
	scripts/bench
test-vllm: setup ## the inference contract against a real vLLM on CPU
	scripts/test-vllm
clean:
	rm -rf .venv .venv-vllm outputs

FROM debian:bookworm-slim

RUM true

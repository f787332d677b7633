FROM debian:bookworm-slim AS build
RUN mkdir /out && echo built >/out/f
FROM debian:bookworm-slim
COPY --from=build /out/f /f

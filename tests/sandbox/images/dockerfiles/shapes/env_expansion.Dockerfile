FROM debian:bookworm-slim
ENV A=/opt B="two words" \
    C='single $A'
ENV D=$A/bin:$B
ENV OLD style value
RUN echo "$D" >/f

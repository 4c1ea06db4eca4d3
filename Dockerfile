# The engine is a static C library that ships inside its Go module, so the build
# needs a C compiler and the image needs glibc.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN go build -trimpath -ldflags='-s -w' -o /starling ./cmd/starling

FROM debian:12.12-slim
RUN useradd --system --create-home --home-dir /var/lib/starling starling
COPY --from=build /starling /usr/local/bin/starling
USER starling
VOLUME /var/lib/starling
ENV STARLING_WORK_ROOT=/var/lib/starling/work STARLING_CACHE_DIR=/var/lib/starling/cache
STOPSIGNAL SIGTERM
ENTRYPOINT ["starling"]
CMD ["worker"]

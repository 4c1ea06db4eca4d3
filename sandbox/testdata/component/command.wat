;; A WASI 0.2 command around the core module that stands for BODY, which exports
;; run: its result is 0 for ok. The module imports memory and alloc from "libc",
;; and what it calls from "lib". A string is a pointer and a length; what a
;; function of WASI gives is at the address that was passed last.
(component $C
  (import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
  (alias export $error "error" (type $error-type))
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (alias outer $C $error-type (type $e))
    (export "error" (type $err (eq $e)))
    (type $se (variant (case "last-operation-failed" (own $err)) (case "closed")))
    (export "stream-error" (type $stream-error (eq $se)))
    (export "input-stream" (type $in (sub resource)))
    (export "output-stream" (type $out (sub resource)))
    (export "[method]input-stream.blocking-read" (func (param "self" (borrow $in)) (param "len" u64)
      (result (result (list u8) (error $stream-error)))))
    (export "[method]output-stream.blocking-write-and-flush" (func (param "self" (borrow $out)) (param "contents" (list u8))
      (result (result (error $stream-error)))))))
  (alias export $streams "input-stream" (type $input-stream))
  (alias export $streams "output-stream" (type $output-stream))
  (import "wasi:cli/stdin@0.2.0" (instance $stdin
    (alias outer $C $input-stream (type $i)) (export "input-stream" (type $s (eq $i)))
    (export "get-stdin" (func (result (own $s))))))
  (import "wasi:cli/stdout@0.2.0" (instance $stdout
    (alias outer $C $output-stream (type $o)) (export "output-stream" (type $s (eq $o)))
    (export "get-stdout" (func (result (own $s))))))
  (import "wasi:cli/stderr@0.2.0" (instance $stderr
    (alias outer $C $output-stream (type $o)) (export "output-stream" (type $s (eq $o)))
    (export "get-stderr" (func (result (own $s))))))
  (import "wasi:cli/environment@0.2.0" (instance $environment
    (export "get-arguments" (func (result (list string))))
    (export "get-environment" (func (result (list (tuple string string)))))))
  (import "wasi:cli/exit@0.2.0" (instance $exit
    (export "exit" (func (param "status" (result))))
    (export "exit-with-code" (func (param "status-code" u8)))))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer $C $pollable (type $o)) (export "pollable" (type $p (eq $o)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $p))))))
  (import "wasi:random/random@0.2.0" (instance $random
    (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))
  (import "wasi:filesystem/types@0.2.0" (instance $files
    (export "descriptor" (type $descriptor (sub resource)))
    (type $flags (flags "read" "write" "file-integrity-sync" "data-integrity-sync" "requested-write-sync" "mutate-directory"))
    (export "descriptor-flags" (type $descriptor-flags (eq $flags)))
    (type $pf (flags "symlink-follow"))
    (export "path-flags" (type $path-flags (eq $pf)))
    (type $of (flags "create" "directory" "exclusive" "truncate"))
    (export "open-flags" (type $open-flags (eq $of)))
    (type $ec (enum "access" "would-block" "already" "bad-descriptor" "busy" "deadlock" "quota" "exist" "file-too-large"
      "illegal-byte-sequence" "in-progress" "interrupted" "invalid" "io" "is-directory" "loop" "too-many-links"
      "message-size" "name-too-long" "no-device" "no-entry" "no-lock" "insufficient-memory" "insufficient-space"
      "not-directory" "not-empty" "not-recoverable" "unsupported" "no-tty" "no-such-device" "overflow" "not-permitted"
      "pipe" "read-only" "invalid-seek" "text-file-busy" "cross-device"))
    (export "error-code" (type $error-code (eq $ec)))
    (export "[method]descriptor.open-at" (func (param "self" (borrow $descriptor)) (param "path-flags" $path-flags)
      (param "path" string) (param "open-flags" $open-flags) (param "flags" $descriptor-flags)
      (result (result (own $descriptor) (error $error-code)))))
    (export "[method]descriptor.read" (func (param "self" (borrow $descriptor)) (param "length" u64) (param "offset" u64)
      (result (result (tuple (list u8) bool) (error $error-code)))))
    (export "[method]descriptor.write" (func (param "self" (borrow $descriptor)) (param "buffer" (list u8)) (param "offset" u64)
      (result (result u64 (error $error-code)))))))
  (alias export $files "descriptor" (type $descriptor-type))
  (import "wasi:filesystem/preopens@0.2.0" (instance $preopens
    (alias outer $C $descriptor-type (type $o)) (export "descriptor" (type $d (eq $o)))
    (export "get-directories" (func (result (list (tuple (own $d) string)))))))
  (import "murmur:stream/events@0.1.0" (instance $events
    (export "emit-chunk" (func (param "chunk" string)))
    (export "emit-thinking-chunk" (func (param "chunk" string)))
    (export "tool-call-started" (func (param "id" string) (param "name" string)))
    (export "tool-call-input-bytes" (func (param "id" string) (param "bytes" u64)))))
  (import "starling:capsule/events@0.1.0" (instance $capsule-events (export "emit" (func (param "event" string)))))
  (import "starling:capsule/control@0.1.0" (instance $control (export "canceled" (func (result bool)))))

  (core module $libc-module
    (memory (export "memory") 1)
    (global $top (mut i32) (i32.const 32768))
    ;; 0xffffffff where there is no more memory.
    (func $alloc (export "alloc") (param $n i32) (result i32) (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
      (global.set $top (i32.add (local.get $at) (local.get $n)))
      (if (i32.gt_u (global.get $top) (i32.mul (memory.size) (i32.const 65536)))
        (then (if (i32.eq (memory.grow (i32.add (i32.shr_u (local.get $n) (i32.const 16)) (i32.const 1))) (i32.const -1))
          (then unreachable))))
      (local.get $at))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (call $alloc (local.get 3))))
  (core instance $libc (instantiate $libc-module))
  (alias core export $libc "memory" (core memory $memory))
  (alias core export $libc "realloc" (core func $realloc))

  (core func $get-stdin (canon lower (func $stdin "get-stdin")))
  (core func $get-stdout (canon lower (func $stdout "get-stdout")))
  (core func $get-stderr (canon lower (func $stderr "get-stderr")))
  (core func $blocking-read (canon lower (func $streams "[method]input-stream.blocking-read") (memory $memory) (realloc $realloc)))
  (core func $blocking-write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush") (memory $memory) (realloc $realloc)))
  (core func $get-arguments (canon lower (func $environment "get-arguments") (memory $memory) (realloc $realloc)))
  (core func $get-environment (canon lower (func $environment "get-environment") (memory $memory) (realloc $realloc)))
  (core func $exit-result (canon lower (func $exit "exit")))
  (core func $exit-code (canon lower (func $exit "exit-with-code")))
  (core func $subscribe (canon lower (func $clock "subscribe-duration")))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core func $random-bytes (canon lower (func $random "get-random-bytes") (memory $memory) (realloc $realloc)))
  (core func $open-at (canon lower (func $files "[method]descriptor.open-at") (memory $memory) (realloc $realloc)))
  (core func $read (canon lower (func $files "[method]descriptor.read") (memory $memory) (realloc $realloc)))
  (core func $write (canon lower (func $files "[method]descriptor.write") (memory $memory) (realloc $realloc)))
  (core func $get-directories (canon lower (func $preopens "get-directories") (memory $memory) (realloc $realloc)))
  (core func $chunk (canon lower (func $events "emit-chunk") (memory $memory)))
  (core func $thinking (canon lower (func $events "emit-thinking-chunk") (memory $memory)))
  (core func $started (canon lower (func $events "tool-call-started") (memory $memory)))
  (core func $bytes (canon lower (func $events "tool-call-input-bytes") (memory $memory)))
  (core func $emit (canon lower (func $capsule-events "emit") (memory $memory)))
  (core func $canceled (canon lower (func $control "canceled")))

  (core module $lib-module
    (import "wasi" "get-stdout" (func $get-stdout (result i32)))
    (import "wasi" "get-stderr" (func $get-stderr (result i32)))
    (import "wasi" "blocking-write" (func $blocking-write (param i32 i32 i32 i32)))
    (import "wasi" "subscribe" (func $subscribe (param i64) (result i32)))
    (import "wasi" "block" (func $block (param i32)))
    (global $out (mut i32) (i32.const -1))
    (global $err (mut i32) (i32.const -1))
    (func (export "print") (param i32 i32)
      (if (i32.eq (global.get $out) (i32.const -1)) (then (global.set $out (call $get-stdout))))
      (call $blocking-write (global.get $out) (local.get 0) (local.get 1) (i32.const 16)))
    (func (export "eprint") (param i32 i32)
      (if (i32.eq (global.get $err) (i32.const -1)) (then (global.set $err (call $get-stderr))))
      (call $blocking-write (global.get $err) (local.get 0) (local.get 1) (i32.const 16)))
    (func (export "sleep") (param i64) (call $block (call $subscribe (local.get 0)))))
  (core instance $lib (instantiate $lib-module (with "wasi" (instance
    (export "get-stdout" (func $get-stdout)) (export "get-stderr" (func $get-stderr))
    (export "blocking-write" (func $blocking-write)) (export "subscribe" (func $subscribe)) (export "block" (func $block))))))
  (core module $main-module (; BODY ;))
  (core instance $main (instantiate $main-module (with "libc" (instance $libc)) (with "lib" (instance
    (export "print" (func $lib "print")) (export "eprint" (func $lib "eprint")) (export "sleep" (func $lib "sleep"))
    (export "get-stdin" (func $get-stdin)) (export "blocking-read" (func $blocking-read))
    (export "get-arguments" (func $get-arguments)) (export "get-environment" (func $get-environment))
    (export "exit-result" (func $exit-result)) (export "exit-code" (func $exit-code))
    (export "random-bytes" (func $random-bytes)) (export "open-at" (func $open-at)) (export "read" (func $read))
    (export "write" (func $write)) (export "get-directories" (func $get-directories))
    (export "chunk" (func $chunk)) (export "thinking" (func $thinking)) (export "started" (func $started))
    (export "bytes" (func $bytes)) (export "emit" (func $emit)) (export "canceled" (func $canceled))))))
  (func $run (result (result)) (canon lift (core func $main "run")))
  (instance $command (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $command)))

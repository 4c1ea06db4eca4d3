;; Makes empty files, each with a name of its own, without an end.
(module
  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
  (memory (export "memory") 1)
  (func $ok (param i32) (if (local.get 0) (then unreachable)))
  (func (export "_start") (local $n i32) (local $rest i32) (local $at i32)
    (loop $again
      ;; The name is the number in eight letters from a on.
      (local.set $rest (local.get $n))
      (local.set $at (i32.const 0))
      (loop $letter
        (i32.store8 (local.get $at) (i32.add (i32.const 97) (i32.and (local.get $rest) (i32.const 15))))
        (local.set $rest (i32.shr_u (local.get $rest) (i32.const 4)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br_if $letter (i32.lt_u (local.get $at) (i32.const 8))))
      (call $ok (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 8) (i32.const 1) (i64.const 64) (i64.const 64) (i32.const 0) (i32.const 16)))
      (call $ok (call $close (i32.load (i32.const 16))))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br $again))))

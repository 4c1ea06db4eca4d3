;; Makes a directory inside a directory, again and again, without an end.
(module
  (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "d")
  (func $ok (param i32) (if (local.get 0) (then unreachable)))
  (func (export "_start") (local $at i32) (local $below i32)
    (local.set $at (i32.const 3))
    (loop $again
      (call $ok (call $mkdir (local.get $at) (i32.const 0) (i32.const 1)))
      (call $ok (call $open (local.get $at) (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 2) (i64.const 0x6200) (i64.const 0x6200) (i32.const 0) (i32.const 8)))
      (local.set $below (i32.load (i32.const 8)))
      (if (i32.ne (local.get $at) (i32.const 3)) (then (call $ok (call $close (local.get $at)))))
      (local.set $at (local.get $below))
      (br $again))))

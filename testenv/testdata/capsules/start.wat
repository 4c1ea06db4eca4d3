;; Its start function sets what _start exits with.
(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (global $status (mut i32) (i32.const 1))
  (func $init (global.set $status (i32.const 7)))
  (start $init)
  (func (export "_start") (call $exit (global.get $status))))

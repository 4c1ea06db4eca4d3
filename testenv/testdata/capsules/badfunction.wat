;; Imports a function that its interface does not have.
(module
  (import "wasi_snapshot_preview1" "fork" (func (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")))

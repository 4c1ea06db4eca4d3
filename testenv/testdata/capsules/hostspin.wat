;; Asks without a pause whether it was canceled, and ends when it was.
(module
  (import "starling:capsule/control@0.1.0" "canceled" (func $canceled (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $again
      (br_if $again (i32.eqz (call $canceled))))))

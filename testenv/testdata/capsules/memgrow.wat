;; Has 1 page, grows by 15 (to 1 MiB), touches the last byte and exits 0.
(module
  (memory (export "memory") 1)
  (func (export "_start")
    (if (i32.ne (memory.grow (i32.const 15)) (i32.const 1)) (then unreachable))
    (i32.store8 (i32.const 1048575) (i32.const 1))))

;; Grows past any limit in its start function, before _start.
(module
  (memory (export "memory") 1)
  (func $init (drop (memory.grow (i32.const 65535))))
  (start $init)
  (func (export "_start")))

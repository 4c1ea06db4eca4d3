;; Grows its memory by 16 pages (1 MiB) at a time until that is refused.
(module
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
    unreachable))

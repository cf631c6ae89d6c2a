;; As first_message.py, as a component.
(component
  (import "pie:inferlet/types@0.3.0" (instance $types
    (type $e (record (field "code" string) (field "message" string)))
    (export "error" (type $error (eq $e)))))
  (alias export $types "error" (type $error))
 (import "pie:inferlet/core@0.3.0" (instance $core (alias outer 1 $error (type $e)) (export "error" (type $error (eq $e))) (export "send" (func (param "to" u32) (param "message" string) (result (result (option u32) (error $error)))))))
  (core module $Memory
    (memory (export "memory") 4)
    (global $next (mut i32) (i32.const 4096))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
      (global.set $next (i32.add (local.get $at) (local.get 3)))
      (local.get $at)))
  (core instance $memory (instantiate $Memory))
 (core func $send (canon lower (func $core "send") (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core module $Main
    (import "memory" "memory" (memory 4))
    (import "core" "send" (func $send (param i32 i32 i32 i32)))
    (data (i32.const 256) "here")
    (func $start )
    (start $start)
    (func (export "run") (result i32) (call $send (i32.const 0) (i32.const 256) (i32.const 4) (i32.const 128))
       (i32.const 0)))
  (core instance $main (instantiate $Main
    (with "memory" (instance $memory)) (with "core" (instance (export "send" (func $send))))))
  (func (export "run") (result (result (error string))) (canon lift (core func $main "run") (memory (core memory $memory "memory")) (realloc (core func $memory "realloc")))))

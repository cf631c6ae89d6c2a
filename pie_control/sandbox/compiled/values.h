/* Component values as wasmtime's C API lays them out, and what Python tells about a function and the process. */

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpython.h"

/* ---- wasmtime ---- */

enum { BOOL = 0, U8 = 2, U32 = 6, U64 = 8, F32 = 9, F64 = 10, STRING = 12, LIST = 13, TUPLE = 15, OPTION = 18, RESULT = 19 };

typedef struct Value Value;
struct Value {
    uint8_t kind;
    union {
        bool boolean;
        uint8_t u8;
        uint32_t u32;
        uint64_t u64;
        float f32;
        double f64;
        struct {
            size_t size;
            void *data;
        } many; /* of a string: bytes; of a list or tuple: values */
        Value *boxed;
        struct {
            bool is_ok;
            Value *boxed;
        } result;
        uint64_t words[3];
    } of;
};

typedef struct {
    bool (*callback)(void *);
    void *env;
    void (*finalizer)(void *);
} Continuation;

/* ---- what Python gives ---- */

/* Of the process: functions of wasmtime, and objects of fibers.py. */
typedef struct {
    void (*bytes_new)(void *, size_t, const char *);
    void (*list_new)(void *, size_t);
    void (*tuple_new)(void *, size_t);
    Value *(*value_new)(Value *);
    void (*value_delete)(Value *);
    void *(*error_new)(const char *);
    PyObject *running; /* a list of the instance that runs */
    PyObject *none, *suspend, *resumed_in_python;
    PyObject *owner, *expect, *_resumed, *_write, *_value, *_result_address, *waiting; /* names */
} Api;

/* Of a function. Types are written as codes: `b`ool, u`4`, u`8`, `f`loat, `d`ouble, `s`tring; before another type
   `l`ist, `o`ption, `r`esult whose error is Python's business; `t` and a digit before that many types; `_` nothing. */
typedef struct {
    PyObject *call;      /* (owner, *arguments) -> value */
    PyObject *in_python; /* all of a call: (context, arguments, results) -> error; suspending: see call_suspending */
    PyObject *write;     /* (results, value) */
    PyObject *refuse;    /* (results, error), or None */
    PyObject *fail;      /* (results, exception) -> error */
    const char *parameters, *result;
    const uint64_t *most; /* items of a list or bytes of a text, for each parameter */
    uint64_t count;       /* of parameters */
} Function;

#define MOST_PARAMETERS 14

extern Api api;

/* Passes over one type. */
void skip(const char **code);

/* A new reference, or NULL with an exception. */
PyObject *read_value(const char **code, const Value *from);

/* Writes what a function gives; false, and nothing is written, where Python must. */
bool try_write(const Function *function, PyObject *value, Value *results);

/* Host functions of guests, without Python's callbacks of C functions.

   wasmtime calls `call_function` or `call_suspending` for each call of a guest. They read the arguments, call the Python
   function, and write what it returns: what functions.py and values.py do, for the types that hot functions have. Whatever
   is unusual (an argument that is too long, an error, a value of another form) is handed to Python, which does the rest as
   if this file did not exist; so there is one place for every rule. Clocks and random numbers need no Python at all.

   Only the stable ABI of CPython is used, declared here because Python's headers are often not installed; it is the same in
   all versions since 3.11. `LAYOUT` is compared with wasmtime-py's own when the library is loaded. */

#include "values.h"

static PyObject *call_with_addresses(PyObject *callable, size_t count, void *const *addresses, PyObject *last) {
    PyObject *arguments[8] = {NULL};
    bool whole = true;
    for (size_t i = 0; i < count; i++) whole &= (arguments[1 + i] = PyLong_FromVoidPtr(addresses[i])) != NULL;
    arguments[1 + count] = last;
    PyObject *value = NULL;
    if (whole) value = PyObject_Vectorcall(callable, arguments + 1, (count + (last != NULL)) | ARGUMENTS_OFFSET, NULL);
    for (size_t i = 0; i < count; i++) Py_DecRef(arguments[1 + i]);
    return value;
}

/* The error of wasmtime whose address a function returned, if any; takes the reference. */
static void *error_of(PyObject *address) {
    void *error = address ? PyLong_AsVoidPtr(address) : NULL;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        error = api.error_new("internal error in a host function");
    }
    Py_DecRef(address);
    return error;
}

/* After an exception: an error for the guest in the results, or one that ends it. */
static void *fail(const Function *function, Value *results) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    void *end = error_of(call_with_addresses(function->fail, 1, (void *[]){results}, error));
    Py_DecRef(type);
    Py_DecRef(error);
    Py_DecRef(trace);
    return end;
}

static void *finish(const Function *function, PyObject *value, Value *results) {
    if (try_write(function, value, results)) return NULL;
    PyObject *written = call_with_addresses(function->write, 1, (void *[]){results}, value);
    Py_DecRef(written);
    return written ? NULL : fail(function, results);
}

static bool within_bounds(const Function *function, const Value *arguments) {
    const char *code = function->parameters;
    for (uint64_t i = 0; i < function->count; i++, skip(&code))
        if ((*code == 's' || *code == 'l') && arguments[i].of.many.size > function->most[i]) return false;
    return true;
}

/* What the function returns for the owner of the instance that runs; NULL with an exception. */
static PyObject *call(const Function *function, PyObject *instance, const Value *arguments) {
    PyObject *given[MOST_PARAMETERS + 2] = {NULL};
    const char *code = function->parameters;
    if (instance == api.none) Py_IncRef(given[1] = api.none);
    else given[1] = PyObject_GetAttr(instance, api.owner);
    bool whole = given[1] != NULL;
    for (uint64_t i = 0; whole && i < function->count; i++)
        whole = (given[2 + i] = read_value(&code, &arguments[i])) != NULL;
    PyObject *value = NULL;
    if (whole) value = PyObject_Vectorcall(function->call, given + 1, (1 + function->count) | ARGUMENTS_OFFSET, NULL);
    for (uint64_t i = 0; i <= function->count; i++) Py_DecRef(given[1 + i]);
    return value;
}

static void *answer(const Function *function, void *context, const Value *arguments, Value *results) {
    if (!within_bounds(function, arguments))
        return error_of(call_with_addresses(
            function->in_python, 3, (void *[]){context, (void *)arguments, results}, NULL));
    PyObject *value = call(function, PyList_GetItem(api.running, 0), arguments);
    if (!value) return fail(function, results);
    void *error = finish(function, value, results);
    Py_DecRef(value);
    return error;
}

/* A function that does not suspend; returns an error that ends the guest, or NULL. */
void *call_function(void *env, void *context, const void *type, const Value *arguments, size_t count, Value *results,
                    size_t result_count) {
    (void)type, (void)count, (void)result_count;
    int gil = PyGILState_Ensure();
    void *error = answer(env, context, arguments, results);
    PyGILState_Release(gil);
    return error;
}

/* ---- suspending ---- */

static bool is_at_hand(void *env) {
    (void)env;
    return true;
}

static bool write_resumed(const Function *function, PyObject *instance) {
    PyObject *write = PyObject_GetAttr(instance, api._write), *value = PyObject_GetAttr(instance, api._value);
    PyObject *address = PyObject_GetAttr(instance, api._result_address);
    bool written = write && value && address && write == function->write && function->result
        && try_write(function, value, PyLong_AsVoidPtr(address));
    Py_DecRef(write);
    Py_DecRef(value);
    Py_DecRef(address);
    if (!written) return false;
    PyObject *no = PyBool_FromLong(0);
    PyObject_SetAttr(instance, api._resumed, no);
    PyObject_SetAttr(instance, api.waiting, no);
    PyObject_SetAttr(instance, api._value, api.none);
    Py_DecRef(no);
    return true;
}

/* Whether a suspended guest can continue. */
static bool is_resumed(void *env) {
    int gil = PyGILState_Ensure();
    PyObject *instance = PyList_GetItem(api.running, 0);
    PyObject *flag = PyObject_GetAttr(instance, api._resumed);
    bool resumed = flag && PyObject_IsTrue(flag) == 1;
    Py_DecRef(flag);
    if (resumed && !write_resumed(env, instance))
        Py_DecRef(call_with_addresses(api.resumed_in_python, 1, (void *[]){NULL}, NULL));
    PyErr_Clear();
    PyGILState_Release(gil);
    return resumed;
}

static void *expect(const Function *function, PyObject *instance, Value *results) {
    PyObject *address = PyLong_FromVoidPtr(results);
    PyObject *given[] = {NULL, instance, function->write, function->refuse, address};
    PyObject *done = NULL;
    if (address) done = PyObject_VectorcallMethod(api.expect, given + 1, 4 | ARGUMENTS_OFFSET, NULL);
    Py_DecRef(address);
    Py_DecRef(done);
    return done ? NULL : fail(function, results);
}

/* A function that may suspend: it returns SUSPEND then, and `Instance.resume` supplies the value later, never within. */
void call_suspending(void *env, void *context, const void *type, const Value *arguments, size_t count, Value *results,
                     size_t result_count, void **error, Continuation *continuation) {
    (void)type, (void)count, (void)result_count;
    const Function *function = env;
    int gil = PyGILState_Ensure();
    PyObject *instance = PyList_GetItem(api.running, 0);
    *continuation = (Continuation){is_at_hand, NULL, NULL};
    if (within_bounds(function, arguments)) {
        PyObject *value = call(function, instance, arguments);
        if (value == api.suspend) {
            *continuation = (Continuation){is_resumed, env, NULL};
            *error = expect(function, instance, results);
        } else *error = value ? finish(function, value, results) : fail(function, results);
        Py_DecRef(value);
    } else {
        void *all[] = {context, (void *)arguments, results, error, continuation};
        PyObject *done = call_with_addresses(function->in_python, 5, all, NULL); /* says the error itself */
        if (!done) *error = error_of(NULL);
        Py_DecRef(done);
    }
    PyGILState_Release(gil);
}

/* Reading and writing values, as values.py does, for the types that hot functions have. */

#include "values.h"

#include <string.h>

const int32_t LAYOUT[] = {
    sizeof(Value), offsetof(Value, of), BOOL, U8, U32, U64, F32, F64, STRING, LIST, TUPLE, OPTION, RESULT,
};

Api api;

void set_up(const Api *given) { api = *given; }

/* ---- reading ---- */

void skip(const char **code) {
    switch (*(*code)++) {
    case 'l': case 'o': case 'r':
        skip(code);
        break;
    case 't':
        for (int left = *(*code)++ - '0'; left > 0; left--) skip(code);
        break;
    }
}

static PyObject *read_list(const char **code, const Value *from) {
    const Value *items = from->of.many.data;
    size_t size = from->of.many.size;
    PyObject *list = PyList_New((Py_ssize_t)size);
    const char *element = *code;
    skip(code);
    for (size_t i = 0; list && i < size; i++) {
        const char *again = element;
        PyObject *item = read_value(&again, &items[i]);
        if (!item) {
            Py_DecRef(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)i, item);
    }
    return list;
}

PyObject *read_value(const char **code, const Value *from) {
    switch (*(*code)++) {
    case 'b': return PyBool_FromLong(from->of.boolean);
    case '4': return PyLong_FromUnsignedLongLong(from->of.u32);
    case '8': return PyLong_FromUnsignedLongLong(from->of.u64);
    case 'f': return PyFloat_FromDouble(from->of.f32);
    case 'd': return PyFloat_FromDouble(from->of.f64);
    case 's': return PyUnicode_DecodeUTF8(from->of.many.data, (Py_ssize_t)from->of.many.size, NULL);
    default: return read_list(code, from);
    }
}

/* ---- writing ---- */

/* Wasmtime drops the value even if writing fails: kinds are set when what is behind them is valid. False with an exception,
   or without one where a value has a form that Python must write. */
static bool write_value(const char **code, PyObject *value, Value *to);

static bool write_number(char code, PyObject *value, Value *to) {
    if (code == 'f' || code == 'd') {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred()) return false;
        if (code == 'f') to->of.f32 = (float)number; else to->of.f64 = number;
        to->kind = code == 'f' ? F32 : F64;
        return true;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if ((number == (unsigned long long)-1 && PyErr_Occurred()) || (code == '4' && number > UINT32_MAX)) return false;
    if (code == '4') to->of.u32 = (uint32_t)number; else to->of.u64 = number;
    to->kind = code == '4' ? U32 : U64;
    return true;
}

static bool write_bool(PyObject *value, Value *to) {
    int truth = PyObject_IsTrue(value);
    to->of.boolean = truth > 0;
    to->kind = BOOL;
    return truth >= 0;
}

static bool write_string(PyObject *value, Value *to) {
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(value, &size);
    if (!bytes) return false;
    api.bytes_new(&to->of.many, (size_t)size, bytes);
    to->kind = STRING;
    return true;
}

static bool write_items(const char **code, size_t size, PyObject *values, bool same, Value *to) {
    const char *element = *code;
    Value *items = to->of.many.data;
    for (size_t i = 0; i < size; i++) {
        PyObject *item = PySequence_GetItem(values, (Py_ssize_t)i);
        if (same) *code = element;
        bool written = item && write_value(code, item, &items[i]);
        Py_DecRef(item);
        if (!written) return false;
    }
    return true;
}

static bool write_array(char element, const Py_buffer *array, Value *to) {
    char format = array->format ? array->format[0] : 'B';
    bool fits = array->ndim == 1 && array->itemsize == 4 && (element == 'f' ? format == 'f' : format == 'i' || format == 'I');
    if (!fits) return false;
    size_t size = (size_t)array->len / 4;
    api.list_new(&to->of.many, size);
    to->kind = LIST;
    Value *items = to->of.many.data;
    for (size_t i = 0; i < size; i++) {
        memcpy(&items[i].of.u32, (const char *)array->buf + 4 * i, 4);
        items[i].kind = element == 'f' ? F32 : U32;
    }
    return true;
}

static bool write_list(const char **code, PyObject *value, Value *to) {
    char element = **code;
    Py_buffer array;
    if ((element == '4' || element == 'f') && PyObject_CheckBuffer(value)) {
        skip(code);
        if (PyObject_GetBuffer(value, &array, CONTIGUOUS_WITH_FORMAT)) return false;
        bool written = write_array(element, &array, to);
        PyBuffer_Release(&array);
        return written;
    }
    Py_ssize_t size = PySequence_Size(value);
    if (size < 0) return false;
    api.list_new(&to->of.many, (size_t)size);
    to->kind = LIST;
    if (size) return write_items(code, (size_t)size, value, true, to);
    skip(code);
    return true;
}

static bool write_tuple(const char **code, PyObject *value, Value *to) {
    size_t size = (size_t)(*(*code)++ - '0');
    if (PySequence_Size(value) != (Py_ssize_t)size) return false;
    api.tuple_new(&to->of.many, size);
    to->kind = TUPLE;
    return write_items(code, size, value, false, to);
}

/* The value in memory of wasmtime's; NULL if it could not be written. */
static Value *write_boxed(const char **code, PyObject *value) {
    Value scratch;
    memset(&scratch, 0, sizeof scratch);
    if (!write_value(code, value, &scratch)) {
        api.value_delete(&scratch);
        return NULL;
    }
    return api.value_new(&scratch);
}

static bool write_option(const char **code, PyObject *value, Value *to) {
    Value *boxed = NULL;
    if (value == api.none) skip(code);
    else if (!(boxed = write_boxed(code, value))) return false;
    to->of.boxed = boxed;
    to->kind = OPTION;
    return true;
}

static bool write_ok(const char **code, PyObject *value, Value *to) {
    Value *boxed = NULL;
    if (**code == '_') skip(code);
    else if (!(boxed = write_boxed(code, value))) return false;
    to->of.result.is_ok = true;
    to->of.result.boxed = boxed;
    to->kind = RESULT;
    return true;
}

static bool write_value(const char **code, PyObject *value, Value *to) {
    char first = *(*code)++;
    switch (first) {
    case 'b': return write_bool(value, to);
    case 's': return write_string(value, to);
    case 'l': return write_list(code, value, to);
    case 't': return write_tuple(code, value, to);
    case 'o': return write_option(code, value, to);
    case 'r': return write_ok(code, value, to);
    default: return write_number(first, value, to);
    }
}

bool try_write(const Function *function, PyObject *value, Value *results) {
    const char *code = function->result;
    if (!code || write_value(&code, value, results)) return true;
    PyErr_Clear();
    api.value_delete(results);
    memset(results, 0, sizeof *results);
    return false;
}

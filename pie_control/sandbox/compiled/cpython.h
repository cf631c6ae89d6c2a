/* What is used of CPython: its stable ABI, declared here because Python's headers are often not installed. It is the same in
   all versions since 3.11. */

#pragma once

#include <sys/types.h>

typedef struct _object PyObject;
typedef ssize_t Py_ssize_t;
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

#define CONTIGUOUS_WITH_FORMAT 0x000C /* PyBUF_ND | PyBUF_FORMAT */
#define ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1)) /* the item before the arguments may be overwritten */

extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int);
extern void Py_IncRef(PyObject *);
extern void Py_DecRef(PyObject *);
extern PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
extern PyObject *PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *);
extern PyObject *PyObject_GetAttr(PyObject *, PyObject *);
extern int PyObject_SetAttr(PyObject *, PyObject *, PyObject *);
extern int PyObject_IsTrue(PyObject *);
extern int PyObject_CheckBuffer(PyObject *);
extern int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
extern void PyBuffer_Release(Py_buffer *);
extern PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
extern unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
extern PyObject *PyLong_FromVoidPtr(void *);
extern void *PyLong_AsVoidPtr(PyObject *);
extern PyObject *PyFloat_FromDouble(double);
extern double PyFloat_AsDouble(PyObject *);
extern PyObject *PyBool_FromLong(long);
extern PyObject *PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *);
extern const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
extern PyObject *PyList_New(Py_ssize_t);
extern PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
extern int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
extern Py_ssize_t PySequence_Size(PyObject *);
extern PyObject *PySequence_GetItem(PyObject *, Py_ssize_t);
extern PyObject *PyErr_Occurred(void);
extern void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
extern void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);
extern void PyErr_Clear(void);

/* The extension module: `load` gives the routines of fused.h and linear.h for this processor. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <string.h>

#include "routines.h"

#define IN(at) ((const void *)p[at])
#define OUT(at) ((void *)p[at])
#define SELF ((const struct Routines *)PyCapsule_GetPointer(self, NULL))

/* Other Python threads go on meanwhile. */
#define DONE(call)                \
    do {                          \
        Py_BEGIN_ALLOW_THREADS    \
        SELF->call;               \
        Py_END_ALLOW_THREADS      \
        Py_RETURN_NONE;           \
    } while (0)

/* Reads `count` whole numbers, then a float if `real` is given, then the number of threads. */
static int take(PyObject *const *args, Py_ssize_t given, Py_ssize_t count, int64_t *p, float *real, int *threads) {
    if (given != count + (real != NULL) + 1) {
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) p[i] = PyLong_AsLongLong(args[i]);
    if (real) *real = (float)PyFloat_AsDouble(args[count]);
    *threads = (int)PyLong_AsLong(args[given - 1]);
    return !PyErr_Occurred();
}

static PyObject *add_norm(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t p[7];
    float eps;
    int threads;
    if (!take(args, given, 7, p, &eps, &threads)) return NULL;
    DONE(add_norm(IN(0), IN(1), IN(2), OUT(3), OUT(4), p[5], p[6], eps, threads));
}

static PyObject *rotate(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t p[7];
    int threads;
    if (!take(args, given, 7, p, NULL, &threads)) return NULL;
    DONE(rotate(OUT(0), IN(1), IN(2), p[3], p[4], p[5], p[6], threads));
}

static PyObject *silu_mul(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t p[4];
    int threads;
    if (!take(args, given, 4, p, NULL, &threads)) return NULL;
    DONE(silu_mul(IN(0), OUT(1), p[2], p[3], threads));
}

static PyObject *attend(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t p[16];
    float scale;
    int threads;
    if (!take(args, given, 16, p, &scale, &threads)) return NULL;
    DONE(attend(IN(0), IN(1), IN(2), OUT(3), IN(4), IN(5), IN(6), IN(7), p[8], p[9], p[10], p[11], p[12], p[13],
                p[14], p[15], scale, threads));
}

static PyObject *attend_tiles(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t p[17];
    float scale;
    int threads;
    if (!take(args, given, 17, p, &scale, &threads)) return NULL;
    DONE(attend_tiles(IN(0), IN(1), IN(2), OUT(3), IN(4), IN(5), IN(6), IN(7), IN(8), p[9], p[10], p[11], p[12],
                      p[13], p[14], p[15], p[16], scale, threads));
}

static PyObject *linear(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    int64_t p[7];
    int threads;
    if (!take(args, given, 7, p, NULL, &threads)) return NULL;
    DONE(linear(IN(0), IN(1), IN(2), OUT(3), p[4], p[5], p[6], threads));
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef routine_methods[] = {METHOD(add_norm), METHOD(rotate), METHOD(silu_mul),
                                        METHOD(attend), METHOD(attend_tiles), METHOD(linear)};

/* Whether this processor has the instructions, and the operating system lets them be used. */
static int always(void) { return 1; }
#ifdef __x86_64__
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static int has_avx512_bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
/* Intel's take two cycles to multiply a vector of pairs; meanwhile they could multiply four of floats. */
static int has_slow_pairs(void) { return has_avx512_bf16() && __builtin_cpu_is("intel"); }
#endif

/* Best first. `linear` may be of another table than the rest. */
static const struct Choice {
    const char *instructions, *dtype;
    const struct Routines *routines, *linear;
    int (*usable)(void);
} choices[] = {
#ifdef __x86_64__
    {"avx512-bf16-fma", "bfloat16", &avx512_bf16_bfloat16, &avx512_bfloat16, has_slow_pairs},
    {"avx512-bf16", "bfloat16", &avx512_bf16_bfloat16, &avx512_bf16_bfloat16, has_avx512_bf16},
    {"avx512", "bfloat16", &avx512_bfloat16, &avx512_bfloat16, has_avx512},
    {"avx512", "float32", &avx512_float32, &avx512_float32, has_avx512},
    {"avx2", "bfloat16", &avx2_bfloat16, &avx2_bfloat16, has_avx2},
    {"avx2", "float32", &avx2_float32, &avx2_float32, has_avx2},
#endif
    {"baseline", "bfloat16", &baseline_bfloat16, &baseline_bfloat16, always},
    {"baseline", "float32", &baseline_float32, &baseline_float32, always},
};

/* (instructions, panel width, routines by name), each routine bound to the table it calls. */
static PyObject *describe(const struct Choice *choice) {
    PyObject *by_name = PyDict_New();
    int failed = !by_name;
    for (size_t i = 0; !failed && i < sizeof routine_methods / sizeof *routine_methods; i++) {
        const char *name = routine_methods[i].ml_name;
        const struct Routines *from = strcmp(name, "linear") ? choice->routines : choice->linear;
        PyObject *table = PyCapsule_New((void *)from, NULL, NULL);
        PyObject *routine = table ? PyCFunction_New(&routine_methods[i], table) : NULL;
        failed = !routine || PyDict_SetItemString(by_name, name, routine) < 0;
        Py_XDECREF(table);
        Py_XDECREF(routine);
    }
    long long width = choice->linear->panel_width;
    PyObject *all = failed ? NULL : Py_BuildValue("sLO", choice->instructions, width, by_name);
    Py_XDECREF(by_name);
    return all;
}

static PyObject *load(PyObject *module, PyObject *wanted) {
    (void)module;
    const char *dtype = PyUnicode_AsUTF8AndSize(wanted, NULL);
    PyObject *found = dtype ? PyList_New(0) : NULL;
    for (size_t i = 0; found && i < sizeof choices / sizeof *choices; i++) {
        const struct Choice *choice = &choices[i];
        if (strcmp(choice->dtype, dtype) || !choice->routines->compiled || !choice->usable()) continue;
        PyObject *one = describe(choice);
        if (!one || PyList_Append(found, one) < 0) Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

static PyMethodDef methods[] = {
    {"load", load, METH_O, "The routines for a dtype that this processor runs, best first."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&definition); }

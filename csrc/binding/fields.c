/* Named arguments, by a table of fields: name, type and destination. */
#include <limits.h>
#include <string.h>

#include "convert.h"

static int integer_from(PyObject* object, int* value) {
    long number = PyLong_AsLong(object);
    if (number == -1 && PyErr_Occurred()) return -1;
    if (number < INT_MIN || number > INT_MAX)
        return sd_set_error(PyExc_OverflowError, "the integer does not fit 32 bits");
    *value = (int)number;
    return 0;
}

static int word_from(PyObject* object, const char** value) {
    Py_ssize_t size = 0;
    if (!PyUnicode_Check(object)) return sd_set_error(PyExc_TypeError, "no str");
    *value = PyUnicode_AsUTF8AndSize(object, &size);
    if (*value == NULL) return -1;
    if (strlen(*value) == (size_t)size) return 0;
    return sd_set_error(PyExc_ValueError, "embedded null character");
}

static int value_from(PyObject* object, const sd_field* field) {
    switch (field->type) {
    case SD_FIELD_INTEGER: return integer_from(object, field->value);
    case SD_FIELD_REAL: *(double*)field->value = PyFloat_AsDouble(object); return PyErr_Occurred() ? -1 : 0;
    case SD_FIELD_FLAG: return (*(int*)field->value = PyObject_IsTrue(object)) < 0 ? -1 : 0;
    case SD_FIELD_WORD: return word_from(object, field->value);
    case SD_FIELD_OBJECT: *(PyObject**)field->value = object;
    }
    return 0;
}

/* Set TypeError for a value of another type; keep other exceptions. */
static void refuse_type(PyObject* object, const char* of, const sd_field* field) {
    static const char* const expected[] = {
        [SD_FIELD_INTEGER] = "an integer", [SD_FIELD_REAL] = "a number",
        [SD_FIELD_FLAG] = "True or False", [SD_FIELD_WORD] = "a str",
        [SD_FIELD_OBJECT] = "any object",
    };
    if (PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "%s: %s is a %.100s, expected %s", of, field->name,
                     Py_TYPE(object)->tp_name, expected[field->type]);
}

/* Set TypeError for the first key of the dict that is no field. Keys of a subclass of str may compare
 * arbitrarily, so they never match. */
static void refuse_unknown(PyObject* dict, const char* of, const sd_field* fields, int n) {
    PyObject *key, *object;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &object);) {
        int known = 0;
        for (int i = 0; i < n && PyUnicode_CheckExact(key); i++)
            known |= PyUnicode_CompareWithASCIIString(key, fields[i].name) == 0;
        if (known) continue;
        PyErr_Format(PyExc_TypeError, "%s has no argument %R", of, key);
        return;
    }
}

int sd_fields_from(PyObject* dict, const char* of, const sd_field* fields, int n) {
    Py_ssize_t n_found = 0;
    for (int i = 0; i < n; i++) {
        const sd_field* field = &fields[i];
        PyObject* name = PyUnicode_FromString(field->name);
        PyObject* object = name ? PyDict_GetItemWithError(dict, name) : NULL;
        Py_XDECREF(name);
        if (PyErr_Occurred()) return -1;
        if (object == NULL) {
            if (field->need == SD_FIELD_OPTIONAL) continue;
            return sd_set_error(PyExc_TypeError, "%s: %s is missing", of, field->name);
        }
        n_found++;
        if (value_from(object, field) == 0) continue;
        refuse_type(object, of, field);
        return -1;
    }
    if (n_found == PyDict_GET_SIZE(dict)) return 0;
    refuse_unknown(dict, of, fields, n);
    return -1;
}

int sd_fields_from_mapping(PyObject* mapping, const char* of, const sd_field* fields, int n) {
    PyObject* dict = PyDict_New();
    int result = dict != NULL && PyDict_Update(dict, mapping) == 0 ? sd_fields_from(dict, of, fields, n) : -1;
    Py_XDECREF(dict);
    return result;
}

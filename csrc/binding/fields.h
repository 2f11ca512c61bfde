/* Named arguments, by one table of fields: name, type, and where the value goes. */
#ifndef SD_FIELDS_H
#define SD_FIELDS_H

#include "convert.h"

/* The Python type of a field; SD_C_… is the C type of its value. */
typedef enum sd_field_type {
    SD_FIELD_INTEGER, /* int, or an object with __index__ */
    SD_FIELD_REAL,    /* float, or an object with __float__ */
    SD_FIELD_FLAG,    /* truth value of any object: 0 or 1 */
    SD_FIELD_WORD,    /* str without a null character, borrowed from the object */
    SD_FIELD_OBJECT,  /* any object, borrowed from the dict */
} sd_field_type;

#define SD_C_INTEGER int
#define SD_C_REAL double
#define SD_C_FLAG int
#define SD_C_WORD const char*
#define SD_C_OBJECT PyObject*

typedef enum sd_field_need { SD_FIELD_REQUIRED, SD_FIELD_OPTIONAL } sd_field_need;

typedef struct sd_field {
    const char* name;
    sd_field_type type;
    sd_field_need need;
    /* Where the value goes; left as it is where an optional field is not given. */
    void* value;
} sd_field;

/* Entries of an array of fields: required ones, and those that may be absent. */
#define SD_INTEGER(name, value) {name, SD_FIELD_INTEGER, SD_FIELD_REQUIRED, value}
#define SD_REAL(name, value) {name, SD_FIELD_REAL, SD_FIELD_REQUIRED, value}
#define SD_FLAG(name, value) {name, SD_FIELD_FLAG, SD_FIELD_REQUIRED, value}
#define SD_WORD(name, value) {name, SD_FIELD_WORD, SD_FIELD_REQUIRED, value}
#define SD_OBJECT(name, value) {name, SD_FIELD_OBJECT, SD_FIELD_REQUIRED, value}
#define SD_OPTIONAL(type, name, value) {name, SD_FIELD_##type, SD_FIELD_OPTIONAL, value}

/* Read the fields [n] of a dict, which has no other keys. To convert a value may run the caller's code, so
 * the dict must be one that no caller has, a copy: it owns what is borrowed from it. `of` is for messages.
 * Returns 0, or -1 with an exception: TypeError where a field is missing, unknown or of another type. */
int sd_fields_from(PyObject* dict, const char* of, const sd_field* fields, int n);

/* The same of any mapping, which is copied. */
int sd_fields_from_mapping(PyObject* mapping, const char* of, const sd_field* fields, int n);

/* Both for an array of fields. */
#define SD_FIELDS_FROM(dict, of, fields) \
    sd_fields_from(dict, of, fields, (int)(sizeof(fields) / sizeof *(fields)))
#define SD_FIELDS_FROM_MAPPING(mapping, of, fields) \
    sd_fields_from_mapping(mapping, of, fields, (int)(sizeof(fields) / sizeof *(fields)))

#endif

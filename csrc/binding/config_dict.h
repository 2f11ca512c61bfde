/* From the canonical configuration, a dict, to what the core takes. */
#ifndef SD_CONFIG_DICT_H
#define SD_CONFIG_DICT_H

#include <Python.h>

#include "config.h"

/* A config dict that no caller has (the caller's own copy) → sd_config, whose arrays the caller frees by
 * sd_config_free. What may be absent has the value of a plain decoder. Returns 0, or -1 with an exception and
 * nothing owned. */
int sd_config_from(PyObject* dict, sd_config* config);
void sd_config_free(sd_config* config);

#endif

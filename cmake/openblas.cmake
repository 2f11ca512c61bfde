# OpenBLAS, which kernels/gemm.c uses to run prompts through the model.
#
# By default a private copy: the library of the PyPI package scipy-openblas32 (a build requirement, so
# no system package is needed) is copied beside the extension under a soname of its own, with its
# symbols renamed from scipy_* to specdec_*. The extension finds it by a run path relative to itself.
# The soname keeps the loader from handing us the copy that SciPy has loaded, and the symbol names keep
# a library loaded with RTLD_GLOBAL from taking its place; so its threading can be switched off
# without touching anybody else's.
#
# Sets: target specdec_openblas (to link), SPECDEC_BLAS_INCLUDE_DIRS, SPECDEC_BLAS_DEFINITIONS (for
# gemm.c alone) and SPECDEC_BLAS_RPATH.

add_library(specdec_openblas INTERFACE)

if(SPECDEC_SYSTEM_OPENBLAS)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
  target_link_libraries(specdec_openblas INTERFACE PkgConfig::openblas)
  set(SPECDEC_BLAS_INCLUDE_DIRS ${openblas_INCLUDE_DIRS})
  set(SPECDEC_BLAS_DEFINITIONS "")
  set(SPECDEC_BLAS_RPATH "")
  message(STATUS "OpenBLAS: the system's, ${openblas_VERSION}")
  return()
endif()

# Where the package keeps its headers, its library and its licence.
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_openblas.py"
  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_VARIABLE problem RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "scipy-openblas32 was not found for ${Python_EXECUTABLE}. Install it there, or "
    "configure with SPECDEC_SYSTEM_OPENBLAS=ON.\n${problem}")
endif()
string(REPLACE "\n" ";" found "${found}")
list(POP_FRONT found openblas_version SPECDEC_BLAS_INCLUDE_DIRS openblas_library openblas_licence)
set(openblas_companions ${found})
set(SPECDEC_BLAS_DEFINITIONS SD_BLAS_PREFIXED)
message(STATUS "OpenBLAS: a private copy of scipy-openblas32 ${openblas_version}")

set(private_library
  "${PROJECT_BINARY_DIR}/libspecdec_openblas${CMAKE_SHARED_LIBRARY_SUFFIX}")

if(APPLE)
  # Untested. Symbols are bound to a library by name there, so they need no renaming.
  set(SPECDEC_BLAS_RPATH "@loader_path")
  add_custom_command(
    OUTPUT "${private_library}"
    COMMAND "${CMAKE_COMMAND}" -E copy "${openblas_library}" "${private_library}"
    COMMAND install_name_tool -id "@rpath/libspecdec_openblas.dylib" "${private_library}"
    COMMAND codesign --force --sign - "${private_library}"
    DEPENDS "${openblas_library}" VERBATIM)
else()
  set(SPECDEC_BLAS_RPATH "$ORIGIN")
  find_program(PATCHELF patchelf REQUIRED)
  add_custom_command(
    OUTPUT "${private_library}"
    COMMAND "${CMAKE_COMMAND}"
      -D "source=${openblas_library}" -D "target=${private_library}"
      -D "nm=${CMAKE_NM}" -D "patchelf=${PATCHELF}"
      -P "${CMAKE_CURRENT_LIST_DIR}/private_library.cmake"
    DEPENDS "${openblas_library}" "${CMAKE_CURRENT_LIST_DIR}/private_library.cmake" VERBATIM)
  # cblas.h declares scipy_NAME; the private copy has specdec_NAME.
  foreach(name IN ITEMS cblas_sgemm openblas_set_num_threads openblas_get_num_threads
                        openblas_get_config openblas_get_corename)
    list(APPEND SPECDEC_BLAS_DEFINITIONS "scipy_${name}=specdec_${name}")
  endforeach()
endif()

add_custom_target(specdec_openblas_copy DEPENDS "${private_library}")
add_library(specdec_openblas_private SHARED IMPORTED)
set_target_properties(specdec_openblas_private PROPERTIES IMPORTED_LOCATION "${private_library}")
add_dependencies(specdec_openblas_private specdec_openblas_copy)
target_link_libraries(specdec_openblas INTERFACE specdec_openblas_private)

install(FILES "${private_library}" ${openblas_companions} DESTINATION .)
install(FILES "${openblas_licence}" DESTINATION . RENAME libspecdec_openblas.LICENSE.txt)

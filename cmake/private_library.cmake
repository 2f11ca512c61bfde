# cmake -D source=LIB -D target=LIB -D prefix=PREFIX -D nm=NM -D patchelf=PATCHELF -P private_library.cmake
#
# Copy the shared library of scipy-openblas32 to `target`, give it the soname of that file and rename every
# symbol that it exports, scipy_NAME or NAME, to PREFIXNAME. What it needs besides the system's libraries it then
# finds in its own folder.
cmake_minimum_required(VERSION 3.21)

get_filename_component(soname "${target}" NAME)
set(symbol_map "${target}.symbols")

execute_process(
  COMMAND "${nm}" -D --defined-only "${source}"
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES " T scipy_cblas_sgemm\n")
  message(FATAL_ERROR "${source}: no function scipy_cblas_sgemm")
endif()
string(REGEX MATCHALL " [A-Z] [A-Za-z0-9_]+" names "${symbols}")
list(TRANSFORM names REPLACE "^ [A-Z] " "")
list(TRANSFORM names REPLACE "^(scipy_)?(.+)$" "\\0 ${prefix}\\2")
list(JOIN names "\n" lines)
file(WRITE "${symbol_map}" "${lines}\n")

# Work on another name: an interrupted build leaves no half-made library.
file(COPY_FILE "${source}" "${target}.part")
execute_process(
  COMMAND "${patchelf}" --set-soname "${soname}" --set-rpath "$ORIGIN"
    --rename-dynamic-symbols "${symbol_map}" "${target}.part"
  COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${target}.part" "${target}")

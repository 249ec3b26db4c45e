# The CUDA back end.
#
#   -DCADRE_CUDA=AUTO   build it if nvcc (CUDA 12 or newer) and the headers of cuBLAS, cuDNN 9, its
#                       frontend and NCCL 2.22 are installed; otherwise report what is missing
#   -DCADRE_CUDA=ON     fail if something is missing
#   -DCADRE_CUDA=OFF    do not build it
#   -DCADRE_CUDA_ROOT   the folder that `deploy/setup.sh --cuda-root` prints. Searched before the PATH,
#                       /usr/local/cuda and the folder into which setup.sh installs a toolkit
#   -DCADRE_CUDA_ARCHITECTURES  as CMAKE_CUDA_ARCHITECTURES
#
# Sets CADRE_HAS_CUDA and CADRE_CUDA_LIBRARY_FOLDERS, and defines the targets cadre_cuda_headers and
# cadre_cuda_static_runtime. A worker loads cuBLAS, cuDNN and NCCL when it computes on a GPU, so programs
# run on hosts without them. find_package(CUDAToolkit) is not used, because the headers may come from
# separate packages with folders of their own.
set(CADRE_CUDA AUTO CACHE STRING "Build the CUDA back end: AUTO, ON or OFF")
set_property(CACHE CADRE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CADRE_CUDA_ROOT "" CACHE PATH "Folder of a toolkit, as deploy/setup.sh --cuda-root prints it")
# Machine code for H100 and H200, and PTX, from which drivers compile code for other cards from A100 on.
# "80;90a-real;100-real" has machine code for A100 and B200 too and takes 1.4 times as long to compile.
set(CADRE_CUDA_ARCHITECTURES "80-virtual;90a-real" CACHE STRING
    "GPU architectures to compile kernels for")

# Sets `nvcc` to the first nvcc of CUDA 12 or newer; otherwise appends to `missing`.
macro(cadre_find_nvcc)
  find_program(nvcc_on_path nvcc NO_CACHE NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
  if(nvcc_on_path)
    file(REAL_PATH "${nvcc_on_path}" nvcc_on_path)
  endif()
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(NOT cache)
    set(cache "$ENV{HOME}/.cache")
  endif()
  set(candidates)
  if(CADRE_CUDA_ROOT)
    list(APPEND candidates "${CADRE_CUDA_ROOT}/bin/nvcc")
  endif()
  if(nvcc_on_path)
    list(APPEND candidates "${nvcc_on_path}")
  endif()
  list(APPEND candidates /usr/local/cuda/bin/nvcc "${cache}/cadre/cuda-13.0/bin/nvcc")
  set(nvcc)
  set(rejected)
  foreach(candidate IN LISTS candidates)
    cmake_path(SET headers NORMALIZE "${candidate}/../../include")
    if(nvcc OR NOT EXISTS "${candidate}" OR NOT EXISTS "${headers}/cuda_runtime_api.h")
      continue()
    endif()
    execute_process(COMMAND "${candidate}" --version OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(output MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12)
      set(nvcc "${candidate}")
    else()
      string(APPEND rejected " (not ${candidate})")
    endif()
  endforeach()
  if(NOT nvcc)
    list(APPEND missing "nvcc of CUDA 12 or newer${rejected}")
  endif()
endmacro()

# Appends to `cuda_headers` the folder of a header, or to `missing` its name. With a minimum version, the
# macros PREFIX_MAJOR and PREFIX_MINOR of VERSION_HEADER must define at least that version.
macro(cadre_find_cuda_header header)
  cmake_parse_arguments(ARG "" "VERSION_HEADER;PREFIX;MIN" "" ${ARGN})
  set(found)
  foreach(include IN LISTS cuda_includes)
    if(found OR NOT EXISTS "${include}/${header}")
      continue()
    endif()
    set(version 0)
    if(ARG_MIN AND EXISTS "${include}/${ARG_VERSION_HEADER}")
      foreach(part MAJOR MINOR)
        file(STRINGS "${include}/${ARG_VERSION_HEADER}" line LIMIT_COUNT 1
          REGEX "^ *# *define +${ARG_PREFIX}_${part} +[0-9]+")
        string(REGEX REPLACE ".*${part} +([0-9]+).*" "\\1" ${part} "${line}")
      endforeach()
      set(version "${MAJOR}.${MINOR}")
    endif()
    # A folder with an older version does not hide a newer one in a later folder.
    if(NOT ARG_MIN OR version VERSION_GREATER_EQUAL ARG_MIN)
      set(found "${include}")
    endif()
  endforeach()
  if(found)
    list(APPEND cuda_headers "${found}")
  elseif(ARG_MIN)
    list(APPEND missing "${header} of version ${ARG_MIN} or newer")
  else()
    list(APPEND missing "${header}")
  endif()
endmacro()

# Sets `missing` to the error if nvcc cannot compile with the host compiler. Tried once, because it takes
# a second or two.
macro(cadre_try_nvcc)
  set(compilers "${nvcc} ${CMAKE_CXX_COMPILER}")
  execute_process(COMMAND "${nvcc}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  foreach(architecture IN LISTS CADRE_CUDA_ARCHITECTURES)
    string(REGEX MATCH "^[0-9]+" number "${architecture}")
    if(NOT known MATCHES "sm_${number}(\n|$)")
      set(missing "${nvcc} does not support the architecture ${architecture}: change CADRE_CUDA_ARCHITECTURES")
    endif()
  endforeach()
  if(NOT missing AND NOT CADRE_NVCC_WORKS STREQUAL compilers)
    set(folder "${CMAKE_BINARY_DIR}/CMakeFiles/cadre_cuda")
    file(WRITE "${folder}/try.cu" "__global__ void Kernel() {}\n")
    execute_process(COMMAND "${nvcc}" -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}" -c try.cu -o try.o
      WORKING_DIRECTORY "${folder}" OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
    if(code EQUAL 0)
      set(CADRE_NVCC_WORKS "${compilers}" CACHE INTERNAL "nvcc and host compiler that work together")
    else()
      string(STRIP "${nvcc} cannot compile with ${CMAKE_CXX_COMPILER}: ${output}" missing)
    endif()
  endif()
endmacro()

# Sets `missing` to a sentence, or to nothing; also cuda_headers and cuda_runtime.
macro(cadre_find_cuda)
  set(missing)
  cadre_find_nvcc()
  cmake_path(SET toolkit NORMALIZE "${nvcc}/../..")
  string(REGEX REPLACE "/$" "" toolkit "${toolkit}")
  # The headers of the runtime must be those of nvcc, so its toolkit comes first.
  set(cuda_includes)
  foreach(folder "${toolkit}" "${CADRE_CUDA_ROOT}" /usr/local/cuda "${cache}/cadre/cuda-13.0")
    list(APPEND cuda_includes "${folder}/include" "${folder}/nvidia/cu13/include"
      "${folder}/nvidia/cudnn/include" "${folder}/nvidia/nccl/include")
  endforeach()
  list(APPEND cuda_includes /usr/include "/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}")
  set(cuda_headers "${toolkit}/include")
  cadre_find_cuda_header(cublasLt.h)
  cadre_find_cuda_header(cudnn.h VERSION_HEADER cudnn_version.h PREFIX CUDNN MIN 9)
  cadre_find_cuda_header(cudnn_frontend.h)
  cadre_find_cuda_header(nccl.h VERSION_HEADER nccl.h PREFIX NCCL MIN 2.22)
  list(REMOVE_DUPLICATES cuda_headers)
  find_library(cuda_runtime cudart_static NO_CACHE NO_DEFAULT_PATH PATHS "${toolkit}"
    PATH_SUFFIXES lib64 lib "targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib")
  if(nvcc AND NOT cuda_runtime)
    list(APPEND missing "libcudart_static.a of ${toolkit}")
  endif()
  if(missing)
    list(JOIN missing ", " missing)
    set(missing "these are missing: ${missing}. deploy/setup.sh cuda installs them")
  else()
    cadre_try_nvcc()
  endif()
endmacro()

set(CADRE_HAS_CUDA OFF)
if(NOT CADRE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "CADRE_CUDA must be AUTO, ON or OFF, not '${CADRE_CUDA}'")
elseif(CADRE_CUDA STREQUAL OFF)
  message(STATUS "CUDA back end: not built, CADRE_CUDA is OFF")
else()
  cadre_find_cuda()
  if(NOT missing)
    set(CADRE_HAS_CUDA ON)
  elseif(CADRE_CUDA STREQUAL ON)
    message(FATAL_ERROR "CADRE_CUDA is ON, but ${missing}")
  else()
    message(STATUS "CUDA back end: not built, ${missing}")
  endif()
endif()

if(CADRE_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER "${nvcc}")
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
  set(CMAKE_CUDA_ARCHITECTURES "${CADRE_CUDA_ARCHITECTURES}")
  if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
  enable_language(CUDA)
  # cadre_cuda_runtime links the runtime.
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O2")
  # CMake 3.25 does not know the option of nvcc for C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  # Line numbers for compute-sanitizer and profilers, without cost at run time.
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)

  add_library(cadre_cuda_headers INTERFACE)
  target_include_directories(cadre_cuda_headers SYSTEM INTERFACE ${cuda_headers})
  # The folders of the libraries that belong to these headers, for tests, separated by `:`.
  set(CADRE_CUDA_LIBRARY_FOLDERS)
  foreach(include IN LISTS cuda_headers)
    cmake_path(GET include PARENT_PATH folder)
    list(APPEND CADRE_CUDA_LIBRARY_FOLDERS "${folder}/lib64" "${folder}/lib")
  endforeach()
  list(JOIN CADRE_CUDA_LIBRARY_FOLDERS ":" CADRE_CUDA_LIBRARY_FOLDERS)
  add_library(cadre_cuda_static_runtime INTERFACE)
  target_link_libraries(cadre_cuda_static_runtime INTERFACE
    "${cuda_runtime}" Threads::Threads ${CMAKE_DL_LIBS} rt)
  message(STATUS "CUDA back end: nvcc ${CMAKE_CUDA_COMPILER_VERSION} in ${toolkit}, architectures "
    "${CADRE_CUDA_ARCHITECTURES}")
endif()

# Emulated kernels fuse multiplications and additions, as nvcc does, where this host can.
if(CADRE_TESTS AND CADRE_HAS_CUDA)
  include(CheckCXXSourceRuns)
  check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"fma\") ? 0 : 1; }" CADRE_HOST_HAS_FMA)
endif()

# cadre_cuda_kernels(NAME SOURCES a.cu ... [UNFUSED b.cu ...] [OBJECTS target] [DEPS lib ...]): the
# library cadre_NAME for devices, and cadre_NAME_emulated, the same files compiled by the host's
# compiler for tests. UNFUSED names those of the sources that are compiled without fused
# multiply-adds. OBJECTS names an object library that is added to both.
function(cadre_cuda_kernels name)
  cmake_parse_arguments(ARG "" "OBJECTS" "SOURCES;UNFUSED;DEPS" ${ARGN})
  set(objects)
  if(ARG_OBJECTS)
    set(objects $<TARGET_OBJECTS:${ARG_OBJECTS}>)
  endif()
  add_library(cadre_${name} STATIC ${objects} ${ARG_SOURCES})
  set_source_files_properties(${ARG_SOURCES} PROPERTIES LANGUAGE CUDA)
  if(ARG_UNFUSED)
    set_source_files_properties(${ARG_UNFUSED} PROPERTIES COMPILE_OPTIONS "--fmad=false")
  endif()
  target_include_directories(cadre_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(cadre_${name} PUBLIC cadre_cuda_headers ${ARG_DEPS})
  if(CADRE_TESTS)
    # CMake gives a source one language per folder, so the emulated build compiles wrappers.
    set(emulated)
    foreach(source IN LISTS ARG_SOURCES)
      string(REPLACE "/" "_" flat "${source}")
      set(wrapper "${CMAKE_CURRENT_BINARY_DIR}/emulated_${flat}.cc")
      file(CONFIGURE OUTPUT "${wrapper}" CONTENT
        "#include \"tests/emulator/cuda_on_host.h\"\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      if(source IN_LIST ARG_UNFUSED)
        set_source_files_properties("${wrapper}" PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")
      elseif(CADRE_HOST_HAS_FMA)
        set_source_files_properties("${wrapper}" PROPERTIES COMPILE_OPTIONS "-ffp-contract=fast;-mfma")
      endif()
      list(APPEND emulated "${wrapper}")
    endforeach()
    add_library(cadre_${name}_emulated STATIC EXCLUDE_FROM_ALL ${objects} ${emulated})
    target_compile_definitions(cadre_${name}_emulated PRIVATE CADRE_CUDA_EMULATED)
    # Only nvcc knows `#pragma unroll`.
    target_compile_options(cadre_${name}_emulated PRIVATE -Wno-unknown-pragmas)
    target_include_directories(cadre_${name}_emulated PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(cadre_${name}_emulated PUBLIC cadre_cuda_headers ${ARG_DEPS})
  endif()
endfunction()

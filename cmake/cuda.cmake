# The CUDA back end: found, or left out.
#
#   -DCADRE_CUDA=AUTO   built when nvcc (CUDA 12 or newer) and the headers of cuBLAS, cuDNN 9, its
#                       frontend and NCCL 2.22 are there; says what is missing when they are not
#   -DCADRE_CUDA=ON     an error when they are not
#   -DCADRE_CUDA=OFF    left out
#   -DCADRE_CUDA_ROOT   folder that `deploy/setup.sh --cuda-root` prints, searched before all else;
#                       without it: the PATH, /usr/local/cuda, and where setup.sh puts its own
#   -DCADRE_CUDA_ARCHITECTURES  what kernels are compiled for, as CMAKE_CUDA_ARCHITECTURES has it
#
# Sets CADRE_HAS_CUDA, CADRE_CUDA_LIBRARY_FOLDERS, the targets cadre_cuda_headers and
# cadre_cuda_static_runtime, and the function that rooms use. cuBLAS, cuDNN and NCCL are loaded when
# a worker computes on a GPU, so programs run where they are not.
set(CADRE_CUDA AUTO CACHE STRING "Build the CUDA back end: AUTO, ON or OFF")
set_property(CACHE CADRE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CADRE_CUDA_ROOT "" CACHE PATH "Folder of a toolkit, as deploy/setup.sh --cuda-root prints it")
# Machine code for H100 and H200, and PTX, which other cards from A100 on compile when a program
# starts. "80;90a-real;100-real" has machine code for A100 and B200 too and compiles 1.4 times as long.
set(CADRE_CUDA_ARCHITECTURES "80-virtual;90a-real" CACHE STRING
    "GPU architectures to compile kernels for")

# Folders that may hold a toolkit, best first.
function(cadre_cuda_folders result)
  set(folders)
  if(CADRE_CUDA_ROOT)
    list(APPEND folders "${CADRE_CUDA_ROOT}")
  endif()
  find_program(on_path nvcc NO_CACHE NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
  if(on_path)
    file(REAL_PATH "${on_path}" on_path)
    cmake_path(GET on_path PARENT_PATH on_path)
    cmake_path(GET on_path PARENT_PATH on_path)
    list(APPEND folders "${on_path}")
  endif()
  list(APPEND folders /usr/local/cuda)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(NOT cache)
    set(cache "$ENV{HOME}/.cache")
  endif()
  list(APPEND folders "${cache}/cadre/cuda-13.0")
  set(${result} ${folders} PARENT_SCOPE)
endfunction()

# The first folder with an nvcc of CUDA 12 or newer; else why there is none.
function(cadre_find_nvcc folders toolkit why)
  set(seen)
  foreach(folder IN LISTS folders)
    if(EXISTS "${folder}/bin/nvcc" AND EXISTS "${folder}/include/cuda_runtime_api.h")
      execute_process(COMMAND "${folder}/bin/nvcc" --version
        OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE code)
      if(NOT code EQUAL 0)
        string(APPEND seen " (${folder}/bin/nvcc does not run)")
      elseif(said MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12)
        set(${toolkit} "${folder}" PARENT_SCOPE)
        return()
      else()
        string(APPEND seen " (${folder}/bin/nvcc is CUDA ${CMAKE_MATCH_1})")
      endif()
    endif()
  endforeach()
  set(${toolkit} "" PARENT_SCOPE)
  set(${why} "nvcc of CUDA 12 or newer${seen}" PARENT_SCOPE)
endfunction()

# The value of a macro in a header, or nothing.
function(cadre_header_macro file macro result)
  set(CMAKE_MATCH_1)
  if(EXISTS "${file}")
    file(STRINGS "${file}" line REGEX "^ *# *define +${macro} +[0-9]+" LIMIT_COUNT 1)
    if(line MATCHES "${macro} +([0-9]+)")
      set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
      return()
    endif()
  endif()
  set(${result} "" PARENT_SCOPE)
endfunction()

# Appends to `headers` the folder of a header, or to `missing` its name. With VERSION_FILE, the macros
# <PREFIX>_MAJOR and <PREFIX>_MINOR there must be at least LEAST.
macro(cadre_find_cuda_header header)
  cmake_parse_arguments(ARG "" "VERSION_FILE;PREFIX;LEAST" "" ${ARGN})
  set(found)
  foreach(include IN LISTS includes)
    if(found OR NOT EXISTS "${include}/${header}")
      continue()
    endif()
    if(ARG_VERSION_FILE)
      cadre_header_macro("${include}/${ARG_VERSION_FILE}" ${ARG_PREFIX}_MAJOR major)
      cadre_header_macro("${include}/${ARG_VERSION_FILE}" ${ARG_PREFIX}_MINOR minor)
      if("${major}.${minor}" VERSION_LESS ARG_LEAST)
        continue()
      endif()
    endif()
    set(found "${include}")
  endforeach()
  if(found)
    list(APPEND headers "${found}")
  elseif(ARG_LEAST)
    list(APPEND missing "${header} of version ${ARG_LEAST} or newer")
  else()
    list(APPEND missing "${header}")
  endif()
endmacro()

# Why this nvcc cannot compile for the architectures with this host compiler; empty when it can.
# One try for each set of them, since it takes a second or two.
function(cadre_try_nvcc nvcc result)
  set(subject "${nvcc} ${CMAKE_CXX_COMPILER} ${CADRE_CUDA_ARCHITECTURES}")
  if(CADRE_NVCC_WORKS STREQUAL subject)
    set(${result} "" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${nvcc}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  foreach(architecture IN LISTS CADRE_CUDA_ARCHITECTURES)
    string(REGEX MATCH "^[0-9]+" number "${architecture}")
    if(NOT known MATCHES "sm_${number}(\n|$)")
      set(${result} "${nvcc} does not know the architecture ${architecture}: change CADRE_CUDA_ARCHITECTURES"
        PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(folder "${CMAKE_BINARY_DIR}/CMakeFiles/cadre_cuda")
  file(WRITE "${folder}/try.cu" "__global__ void Kernel() {}\n")
  execute_process(
    COMMAND "${nvcc}" -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}" -c try.cu -o try.o
    WORKING_DIRECTORY "${folder}" OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE code)
  if(code EQUAL 0)
    set(CADRE_NVCC_WORKS "${subject}" CACHE INTERNAL "nvcc that compiled, and with what")
    set(${result} "" PARENT_SCOPE)
  else()
    string(STRIP "${said}" said)
    set(${result} "${nvcc} cannot compile with ${CMAKE_CXX_COMPILER}: ${said}" PARENT_SCOPE)
  endif()
endfunction()

# Looks for everything; sets cuda_toolkit, cuda_headers, cuda_runtime, and cuda_missing, a sentence.
function(cadre_find_cuda)
  cadre_cuda_folders(folders)
  cadre_find_nvcc("${folders}" toolkit missing)
  # The toolkit's own first: the runtime's headers must be those of nvcc.
  set(includes)
  foreach(folder IN LISTS toolkit folders)
    list(APPEND includes "${folder}/include" "${folder}/nvidia/cu13/include"
      "${folder}/nvidia/cudnn/include" "${folder}/nvidia/nccl/include")
  endforeach()
  list(APPEND includes /usr/include "/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}")
  set(headers "${toolkit}/include")
  cadre_find_cuda_header(cublasLt.h)
  cadre_find_cuda_header(cudnn.h VERSION_FILE cudnn_version.h PREFIX CUDNN LEAST 9)
  cadre_find_cuda_header(cudnn_frontend.h)
  cadre_find_cuda_header(nccl.h VERSION_FILE nccl.h PREFIX NCCL LEAST 2.22)
  if(toolkit)
    find_library(runtime cudart_static NO_CACHE NO_DEFAULT_PATH PATHS "${toolkit}"
      PATH_SUFFIXES lib64 lib "targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib")
    if(NOT runtime)
      list(APPEND missing "libcudart_static.a of ${toolkit}")
    endif()
  endif()
  list(JOIN missing ", " missing)
  if(missing)
    set(missing "there is no ${missing}. deploy/setup.sh --cuda gets what is missing")
  else()
    cadre_try_nvcc("${toolkit}/bin/nvcc" missing)
  endif()
  list(REMOVE_DUPLICATES headers)
  set(cuda_toolkit "${toolkit}" PARENT_SCOPE)
  set(cuda_headers "${headers}" PARENT_SCOPE)
  set(cuda_runtime "${runtime}" PARENT_SCOPE)
  set(cuda_missing "${missing}" PARENT_SCOPE)
endfunction()

set(CADRE_HAS_CUDA OFF)
if(NOT CADRE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "CADRE_CUDA is AUTO, ON or OFF, not '${CADRE_CUDA}'")
elseif(CADRE_CUDA STREQUAL OFF)
  message(STATUS "CUDA back end: left out, CADRE_CUDA is OFF")
else()
  cadre_find_cuda()
  if(NOT cuda_missing)
    set(CADRE_HAS_CUDA ON)
  elseif(CADRE_CUDA STREQUAL ON)
    message(FATAL_ERROR "CADRE_CUDA is ON, but ${cuda_missing}")
  else()
    message(STATUS "CUDA back end: left out, ${cuda_missing}")
  endif()
endif()

if(CADRE_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER "${cuda_toolkit}/bin/nvcc")
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
  set(CMAKE_CUDA_ARCHITECTURES "${CADRE_CUDA_ARCHITECTURES}")
  if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
  enable_language(CUDA)
  # The runtime comes with cadre_cuda_runtime, once.
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O2")
  # CMake 3.25 does not know yet how nvcc is told of C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  # Lines of the sources in what compute-sanitizer and profilers report; costs no speed.
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)

  add_library(cadre_cuda_headers INTERFACE)
  target_include_directories(cadre_cuda_headers SYSTEM INTERFACE ${cuda_headers})
  # Where the libraries lie whose headers these are, for the tests; `:` between them.
  set(CADRE_CUDA_LIBRARY_FOLDERS)
  foreach(include IN LISTS cuda_headers)
    cmake_path(GET include PARENT_PATH folder)
    list(APPEND CADRE_CUDA_LIBRARY_FOLDERS "${folder}/lib64" "${folder}/lib")
  endforeach()
  list(JOIN CADRE_CUDA_LIBRARY_FOLDERS ":" CADRE_CUDA_LIBRARY_FOLDERS)
  add_library(cadre_cuda_static_runtime INTERFACE)
  target_link_libraries(cadre_cuda_static_runtime INTERFACE
    "${cuda_runtime}" Threads::Threads ${CMAKE_DL_LIBS} rt)
  message(STATUS "CUDA back end: nvcc ${CMAKE_CUDA_COMPILER_VERSION} in ${cuda_toolkit}, architectures "
    "${CADRE_CUDA_ARCHITECTURES}")
endif()

# cadre_cuda_kernels(NAME SOURCES a.cu ... [OBJECTS target] [DEPS lib ...]): the library cadre_NAME for
# devices, and cadre_NAME_emulated, the same files compiled by the host's compiler for tests. OBJECTS
# names an object library that is added to both.
function(cadre_cuda_kernels name)
  cmake_parse_arguments(ARG "" "OBJECTS" "SOURCES;DEPS" ${ARGN})
  set(objects)
  if(ARG_OBJECTS)
    set(objects $<TARGET_OBJECTS:${ARG_OBJECTS}>)
  endif()
  add_library(cadre_${name} STATIC ${objects} ${ARG_SOURCES})
  set_source_files_properties(${ARG_SOURCES} PROPERTIES LANGUAGE CUDA)
  target_include_directories(cadre_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(cadre_${name} PUBLIC cadre_cuda_headers ${ARG_DEPS})
  if(CADRE_TESTS)
    # A source has one language in its folder, so the emulated build goes through files of its own.
    set(emulated)
    foreach(source IN LISTS ARG_SOURCES)
      string(REPLACE "/" "_" flat "${source}")
      set(wrapper "${CMAKE_CURRENT_BINARY_DIR}/emulated_${flat}.cc")
      file(CONFIGURE OUTPUT "${wrapper}" CONTENT
        "#include \"tests/emulator/cuda_on_host.h\"\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      list(APPEND emulated "${wrapper}")
    endforeach()
    add_library(cadre_${name}_emulated STATIC EXCLUDE_FROM_ALL ${objects} ${emulated})
    target_compile_definitions(cadre_${name}_emulated PRIVATE CADRE_CUDA_EMULATED)
    # `#pragma unroll` is nvcc's.
    target_compile_options(cadre_${name}_emulated PRIVATE -Wno-unknown-pragmas)
    target_include_directories(cadre_${name}_emulated PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(cadre_${name}_emulated PUBLIC cadre_cuda_headers ${ARG_DEPS})
  endif()
endfunction()

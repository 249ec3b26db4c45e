# The functions that the rooms use in their CMakeLists.txt.

# Options of every target of the project: C++20, warnings as errors, programs in <build>/bin.
macro(cadre_compile_options)
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
  endif()
  # No -DNDEBUG: assertions (DCHECK of glog, assert) stay active in Release builds. The loops that
  # dominate the running time are in oneDNN and contain none.
  set(CMAKE_CXX_FLAGS_RELEASE "-O2")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
  # __FILE__ and debug information name files relative to the repository.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options(-Wthread-safety)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT CADRE_SANITIZE)
    # Checks of the C library's functions need an optimised build; sanitizers have their own.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>
      $<$<COMPILE_LANGUAGE:CXX>:-U_FORTIFY_SOURCE> $<$<COMPILE_LANGUAGE:CXX>:-D_FORTIFY_SOURCE=2>)
  endif()
  if(CADRE_SANITIZE)
    add_compile_options(-fsanitize=${CADRE_SANITIZE} -fno-omit-frame-pointer -g1)
    # GCC reports values of std::optional that are set, because sanitizers hide the flow of data.
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
    add_link_options(-fsanitize=${CADRE_SANITIZE})
  endif()
endmacro()

# Debian's Abseil, gRPC and OpenMP are not built with ThreadSanitizer; these files annotate their locks
# and joins.
function(cadre_thread_sanitizer name)
  if(CADRE_SANITIZE STREQUAL "thread")
    target_sources(${name} PRIVATE
      ${PROJECT_SOURCE_DIR}/tests/sanitizer/absl_locks.cc
      ${PROJECT_SOURCE_DIR}/tests/sanitizer/openmp.cc)
    target_link_libraries(${name} PRIVATE absl::synchronization ${CMAKE_DL_LIBS})
  endif()
endfunction()

# With CADRE_UNITY, several files of a target are compiled as one, because parsing the headers of gRPC,
# Protocol Buffers, Abseil and GoogleTest takes most of the time of a file. Names in anonymous namespaces must
# then be unique within a target. They are not in these targets; generated code never has unique names. A
# program has the flags of the files of daemon that it uses.
set(cadre_separate_files proto daemon kernels cli
  kernels_test kernels_cuda_test kernels_cuda_emulated_test
  emulator_test probe_test nn_device_test)
function(cadre_unity target name)
  if(CADRE_UNITY AND NOT name IN_LIST cadre_separate_files)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# cadre_library(NAME SOURCES a.cc ... [DEPS lib ...] [PRIVATE_DEPS lib ...]): the library cadre_NAME of a
# room. DEPS are libraries whose headers the headers of the room include. Only its .cc files use
# PRIVATE_DEPS, so users of the room do not depend on them. Abseil comes with cadre_base, except for the
# parts that cadre_base does not use itself.
function(cadre_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(cadre_${name} STATIC ${ARG_SOURCES})
  target_include_directories(cadre_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  # Position-independent, because programs and the shared library cadre_group link it; calls inside it
  # are as direct as in a program.
  target_compile_options(cadre_${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-fPIC> $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>)
  target_link_libraries(cadre_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  cadre_unity(cadre_${name} ${name})
endfunction()

# cadre_program(NAME SOURCES main.cc ... [DEPS lib ...]): a program in <build>/bin, which is loaded at a
# random address and whose table of functions is read-only once it has started.
function(cadre_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIE>)
  target_link_options(${name} PRIVATE -pie -Wl,-z,relro,-z,now)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  cadre_thread_sanitizer(${name})
endfunction()

# cadre_gpu_programs(NAME ...): programs that check the CUDA back end on a GPU. The target gpu_programs builds them, and
# bench/gpu_bundle.sh collects them.
function(cadre_gpu_programs)
  set_property(GLOBAL APPEND PROPERTY CADRE_GPU_PROGRAMS ${ARGN})
endfunction()

# cadre_test(NAME SOURCES x_test.cc ... [DEPS lib ...] [ARGS arg ...] [LABEL fast|slow] [TIMEOUT seconds]):
# one GoogleTest program, one CTest entry per program. A test that links the CUDA runtime runs on a GPU, too.
function(cadre_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  # Tests run once, so the time to compile them matters more than the time to run them.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  cadre_unity(${name} ${name})
  cadre_thread_sanitizer(${name})
  if("cadre_cuda_runtime" IN_LIST ARG_DEPS)
    cadre_gpu_programs(${name})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  # A program is skipped if all of its tests were skipped and the list of skipped tests ends its output: a
  # program with failures lists those last.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABEL}
    SKIP_REGULAR_EXPRESSION
    "\\[  PASSED  \\] 0 tests.\n\\[  SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\] [^\n]*\n)+$")
endfunction()

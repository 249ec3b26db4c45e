# Third-party packages: found by CMake config where the package provides one, otherwise by CMake's
# modules (SQLite3, ZLIB, JPEG) or pkg-config (ISA-L, CBC, libpq). docs/dependencies.md explains what each is
# used for.
find_package(Threads REQUIRED)
find_package(gRPC CONFIG REQUIRED)  # brings absl, protobuf, OpenSSL, c-ares and re2
find_package(Protobuf REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(gflags CONFIG REQUIRED)
find_package(glog CONFIG REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(SQLite3 REQUIRED)
find_package(nlohmann_json 3.10 CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc)
pkg_check_modules(LIBPQ REQUIRED IMPORTED_TARGET libpq)

# Tests are built by default where GoogleTest is installed.
find_package(GTest CONFIG QUIET)
option(CADRE_TESTS "Build the tests" ${GTest_FOUND})
if(CADRE_TESTS AND NOT GTest_FOUND)
  message(FATAL_ERROR "CADRE_TESTS is ON, but GoogleTest is not installed. "
    "Run deploy/setup.sh test, or configure with -DCADRE_TESTS=OFF.")
elseif(NOT GTest_FOUND)
  message(STATUS "Tests: not built, GoogleTest is not installed (deploy/setup.sh test)")
endif()

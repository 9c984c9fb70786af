# Checks what a build needs. For each missing part, one line says what to do. Installing a wheel needs none of it.
function(smdp_refuse what)
  # CMake does not wrap a line that begins with a blank.
  message(FATAL_ERROR " [smdp] ${what}")
endfunction()

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  smdp_refuse("only Linux is supported, not ${CMAKE_SYSTEM_NAME}: install it in a container or in WSL 2")
endif()
if(SKBUILD_SOABI MATCHES "^cpython-3[0-9]+t")
  smdp_refuse("free-threaded Python (${SKBUILD_SOABI}) is not supported: use a Python with the GIL")
endif()

include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  smdp_refuse("there is no working C++ compiler: install g++ 12 or newer, or take the wheel, which needs none (pip install --only-binary :all: smdp)")
endif()
enable_language(CXX)

set(compiler "${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION})")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  smdp_refuse("${compiler} is too old: install g++ 12 or newer, and name it by CXX=g++-12 if it is not the default")
endif()
if(NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  smdp_refuse("a 64-bit system is needed, but ${compiler} makes code for ${CMAKE_SIZEOF_VOID_P}-byte addresses")
endif()

include(CheckCXXSourceCompiles)
check_cxx_source_compiles(
  "#include <features.h>
   #ifndef __GLIBC__
   #error this is another C library
   #endif
   int main() { return 0; }"
  SMDP_HAS_GLIBC)
if(NOT SMDP_HAS_GLIBC)
  smdp_refuse("glibc is needed, which this system (musl?) lacks: use a distribution such as Debian or Fedora instead of Alpine")
endif()

# Other compilers only have to support the language features.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_CXX20_STANDARD_COMPILE_OPTION)
  smdp_refuse("${compiler} knows no C++20: install g++ 12 or newer, and name it by CXX=g++-12 if it is not the default")
endif()
check_cxx_source_compiles(
  "#include <bit>
   #include <concepts>
   #include <coroutine>
   #include <memory>
   #include <span>
   int main() { return static_cast<int>(std::popcount(0u) + std::span<int>().size()); }"
  SMDP_HAS_CXX20)
if(NOT SMDP_HAS_CXX20)
  smdp_refuse("${compiler} with its library lacks parts of C++20 (<coroutine>, <span>): install g++ 12 or newer, and name it by CXX=g++-12")
endif()

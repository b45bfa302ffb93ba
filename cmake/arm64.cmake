# The toolchain of preset arm64: Debian's cross compiler, and the arm64 libraries that `recipes/setup.sh arm64` puts below
# build/arm64-libraries. What it builds, and what CMake runs of it, runs under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(moe_arm64_libraries ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-libraries ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${moe_arm64_libraries})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} ${moe_arm64_libraries}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${moe_arm64_libraries})
set(Torch_DIR ${moe_arm64_libraries}/torch/share/cmake/Torch)

# Libraries that others ask for, when they are linked and when they run.
set(moe_arm64_folder ${moe_arm64_libraries}/usr/lib/aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${moe_arm64_folder} -Wl,-rpath,${moe_arm64_folder}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

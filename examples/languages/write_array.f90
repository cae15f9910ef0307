! Makes two arrays in .npy files and fills them through mappings: one in Fortran's order, one in C's. Element (i, j) is
! 100 i + j, where i and j count from 0.
!
!     write_array COLUMN.npy ROW.npy ROWS COLUMNS
program write_array
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit, int64
    implicit none

    interface
        function c_open(path, flags) bind(c, name="open")
            import :: c_char, c_int
            character(kind=c_char), intent(in) :: path(*)
            integer(c_int), value :: flags
            integer(c_int) :: c_open
        end function
        function c_close(fd) bind(c, name="close")
            import :: c_int
            integer(c_int), value :: fd
            integer(c_int) :: c_close
        end function
        function c_mmap(address, length, protection, flags, fd, offset) bind(c, name="mmap")
            import :: c_ptr, c_size_t, c_int, c_long
            type(c_ptr), value :: address
            integer(c_size_t), value :: length
            integer(c_int), value :: protection, flags, fd
            integer(c_long), value :: offset
            type(c_ptr) :: c_mmap
        end function
        function c_munmap(address, length) bind(c, name="munmap")
            import :: c_ptr, c_size_t, c_int
            type(c_ptr), value :: address
            integer(c_size_t), value :: length
            integer(c_int) :: c_munmap
        end function
    end interface

    integer(c_int), parameter :: o_rdwr = 2, prot_read_write = 3, map_shared = 1
    integer, parameter :: header_length = 128
    character(len=4096) :: column, row, text
    integer :: rows, columns

    if (command_argument_count() /= 4) call fail("usage: write_array COLUMN.npy ROW.npy ROWS COLUMNS")
    call get_command_argument(1, column)
    call get_command_argument(2, row)
    call get_command_argument(3, text)
    read (text, *) rows
    call get_command_argument(4, text)
    read (text, *) columns
    call make(trim(column), .true.)
    call make(trim(row), .false.)

contains

    subroutine make(path, column_major)
        character(len=*), intent(in) :: path
        logical, intent(in) :: column_major
        character(len=header_length) :: header
        character(len=5) :: order
        integer(int64) :: length
        integer :: unit, status
        integer(c_int) :: fd, ignored
        type(c_ptr) :: mapping
        character(kind=c_char), pointer :: bytes(:)
        real(c_double), pointer :: a(:, :)
        integer :: i, j

        order = merge("True ", "False", column_major)
        write (header, "(a, a, a, i0, a, i0, a)") "{'descr': '<f8', 'fortran_order': ", trim(order), ", 'shape': (", &
            rows, ", ", columns, "), }"
        length = header_length + 8_int64*rows*columns
        open (newunit=unit, file=path, access="stream", form="unformatted", status="replace", iostat=status)
        if (status /= 0) call fail(path//": cannot be created")
        ! Magic, version and the length of the text; the text; and the last byte of the file, which gives it its length.
        write (unit) char(147), "NUMPY", char(1), char(0), char(header_length - 10), char(0)
        write (unit) header(1:header_length - 11), char(10)
        write (unit, pos=length) char(0)
        close (unit)

        fd = c_open(path//c_null_char, o_rdwr)
        if (fd < 0) call fail(path//": cannot be opened")
        mapping = c_mmap(c_null_ptr, int(length, c_size_t), prot_read_write, map_shared, fd, 0_c_long)
        ignored = c_close(fd)
        if (transfer(mapping, 0_c_intptr_t) == -1) call fail(path//": cannot be mapped")
        call c_f_pointer(mapping, bytes, [length])
        if (column_major) then
            call c_f_pointer(c_loc(bytes(header_length + 1)), a, [rows, columns])
            do j = 1, columns
                do i = 1, rows
                    a(i, j) = 100*(i - 1) + (j - 1)
                end do
            end do
        else
            ! A row-major array is a column-major one with its dimensions the other way round.
            call c_f_pointer(c_loc(bytes(header_length + 1)), a, [columns, rows])
            do i = 1, rows
                do j = 1, columns
                    a(j, i) = 100*(i - 1) + (j - 1)
                end do
            end do
        end if
        ignored = c_munmap(mapping, int(length, c_size_t))
    end subroutine

    subroutine fail(why)
        character(len=*), intent(in) :: why
        write (error_unit, "(a)") why
        stop 1
    end subroutine
end program

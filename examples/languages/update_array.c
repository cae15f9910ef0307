/* Adds a number to every element of an array, in place: update_array FILE.npy NUMBER */
#include "npy_map.h"

int main(int count, char **arguments) {
    if (count != 3)
        npy_fail("usage", "update_array FILE.npy NUMBER");
    struct npy_map map = npy_map(arguments[1]);
    const double number = atof(arguments[2]);
    for (size_t i = 0; i < map.rows; i++)
        for (size_t j = 0; j < map.columns; j++)
            map.data[i * map.row_stride + j * map.column_stride] += number;
    npy_unmap(&map);
    return 0;
}

#!/bin/bash
test -f note.txt || exit 3
echo "hello $GREETED" >greeting.txt
